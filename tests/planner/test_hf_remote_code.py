"""Families whose code ships with the weights: no class to compare with, so counts by hand and as released."""

from __future__ import annotations

from typing import Any

import pytest

from seqplan.planner.hf_config import read_model
from tests.planner.hf_examples import LLAMA, refusal

_REMOTE = {
    "vocab_size": 103,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "tie_word_embeddings": False,
}
_OWN = {
    **_REMOTE,
    "intermediate_size": 172,
    "max_position_embeddings": 99,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}
_ENDS = 2 * 103 * 64 + 64
"""Embedding, head and final norm."""
_PLAIN = 4 * 64 * 64 + 3 * 64 * 172 + 2 * 64
"""A layer without biases and with as many kv heads as heads."""

REMOTE: list[tuple[str, dict[str, Any], int]] = [
    ("yi", {**_OWN, "num_key_value_heads": 2}, _ENDS + 3 * (_PLAIN - 2 * 64 * 32)),
    ("baichuan", _OWN, _ENDS + 3 * _PLAIN),
    ("internlm", {**_OWN, "bias": True}, _ENDS + 3 * (_PLAIN + 4 * 64)),
    ("internlm2", {**_OWN, "bias": False, "num_key_value_heads": 2}, _ENDS + 3 * (_PLAIN - 2 * 64 * 32)),
    ("mimo", {**_OWN, "head_dim": 20, "rope_theta": 1e4, "num_key_value_heads": 2},
     _ENDS + 3 * (2 * 64 * 80 + 2 * 64 * 40 + 80 + 2 * 40 + 3 * 64 * 172 + 2 * 64)),
    ("minicpm", {**_OWN, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 32}, _ENDS + 3 * _PLAIN),
    ("orion", _OWN, _ENDS + 64 + 3 * (_PLAIN + 2 * 64)),
    ("exaone", {**_REMOTE, "num_layers": 3, "intermediate_size": 172, "max_position_embeddings": 99,
                "layer_norm_epsilon": 1e-6, "activation_function": "silu", "rope_theta": 1e4},
     _ENDS + 3 * _PLAIN),
    ("qwen", {**_REMOTE, "intermediate_size": 344, "kv_channels": 16, "n_positions": 99, "seq_length": 55,
              "layer_norm_epsilon": 1e-6, "no_bias": True}, _ENDS + 3 * (_PLAIN + 3 * 64)),
    ("chatglm", {**_REMOTE, "num_layers": 3, "padded_vocab_size": 103, "ffn_hidden_size": 172,
                 "kv_channels": 16, "multi_query_attention": True, "multi_query_group_num": 2,
                 "add_qkv_bias": True,
                 "add_bias_linear": False, "seq_length": 99, "layernorm_epsilon": 1e-5},
     _ENDS + 3 * (_PLAIN - 2 * 64 * 32 + 64 + 2 * 32)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "values", "count"), REMOTE, ids=[case[0] for case in REMOTE])
def test_families_with_their_own_code(kind: str, values: dict[str, Any], count: int) -> None:
    data = {"model_type": kind, "architectures": ["XForCausalLM"], **values}
    assert read_model(data).spec.parameters() == count
    text = refusal({**{k: v for k, v in data.items() if k != "vocab_size"}, "padded_vocab_size": None})
    assert "vocab_size" in text


# (model, keys that its makers publish, elements of its checkpoint on the Hugging Face hub)
RELEASED: list[tuple[str, dict[str, Any], int]] = [
    ("InternLM2-7B", {"model_type": "internlm2", "bias": False, "num_key_value_heads": 8, "vocab_size": 92544,
                      "intermediate_size": 14336, "max_position_embeddings": 32768}, 7_737_708_544),
    ("Baichuan2-7B", {"model_type": "baichuan", "vocab_size": 125696}, 7_505_973_248),
    ("EXAONE-3.0-7.8B", {"model_type": "exaone", "num_layers": 32, "num_key_value_heads": 8,
                         "vocab_size": 102400,
                         "intermediate_size": 14336, "layer_norm_epsilon": 1e-5,
                         "activation_function": "silu"},
     7_818_448_896),
    ("MiniCPM-2B", {"model_type": "minicpm", "hidden_size": 2304, "num_attention_heads": 36,
                    "num_hidden_layers": 40,
                    "num_key_value_heads": 36, "intermediate_size": 5760, "vocab_size": 122753,
                    "tie_word_embeddings": True}, 2_724_880_896),
    ("StableLM-3B-4E1T", {"model_type": "stablelm_epoch", "hidden_size": 2560, "intermediate_size": 6912,
                          "vocab_size": 50304, "norm_eps": 1e-5, "rope_pct": 0.25}, 2_795_443_200),
    ("Falcon-7B", {"model_type": "RefinedWebModel", "n_layer": 32, "n_head": 71, "hidden_size": 4544,
                   "num_attention_heads": 71, "multi_query": True, "parallel_attn": True, "bias": False,
                   "alibi": False, "vocab_size": 65024, "tie_word_embeddings": True}, 6_921_720_704),
    ("Phi-1.5", {"model_type": "phi-msft", "n_embd": 2048, "n_head": 32, "n_layer": 24, "n_positions": 2048,
                 "n_inner": None, "rotary_dim": 32, "activation_function": "gelu_new", "vocab_size": 51200,
                 "layer_norm_epsilon": 1e-5}, 1_418_270_720),
]  # fmt: skip


@pytest.mark.parametrize(("name", "values", "count"), RELEASED, ids=[case[0] for case in RELEASED])
def test_released_models(name: str, values: dict[str, Any], count: int) -> None:
    kept = {} if values["model_type"] == "phi-msft" else LLAMA
    assert read_model({**kept, "tie_word_embeddings": False, **values}).spec.parameters() == count
