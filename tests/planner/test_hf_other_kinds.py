"""Mixtures, hybrids and encoder-decoders under a known model_type: each telling key alone is enough."""

from __future__ import annotations

from typing import Any

import pytest

from seqplan.planner.hf_config import read_model
from tests.planner.hf_examples import LLAMA, refusal

DENSE = 6_738_415_616
"""Elements of Llama-2-7B (arXiv 2307.09288)."""
MOE, HYBRID = "mixture of experts", "state-space or hybrid layers"
BOTH, CROSS, TOWER = "encoder-decoder", "cross-attention", "more than one tower"

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"num_experts": "8"}, MOE, "num_experts='8'"),
    ({"n_routed_experts": "64"}, MOE, "n_routed_experts='64'"),
    ({"num_expert": 8}, MOE, "num_expert=8"),
    ({"num_experts": True}, MOE, "num_experts=true"),
    ({"expert_count": 4.0}, MOE, "expert_count=4.0"),
    ({"num_experts_per_tok": 2}, MOE, "num_experts_per_tok=2"),
    ({"moe_intermediate_size": 128}, MOE, "moe_intermediate_size=128"),
    ({"n_shared_experts": 2}, MOE, "n_shared_experts=2"),
    ({"router_aux_loss_coef": 0.001}, MOE, "router_aux_loss_coef=0.001"),
    ({"moeTopK": 2}, MOE, "moeTopK=2"),
    ({"moe_layers": [0]}, MOE, "moe_layers=[0]"),
    ({"moe_layer_freq": [0, 1]}, MOE, "moe_layer_freq=[0, 1]"),
    ({"moe": {"top_k": 2}}, MOE, "moe.top_k=2"),
    ({"moe_config": {"num_experts": "8"}}, MOE, "moe_config.num_experts='8'"),
    ({"mlp_config": {"num_experts": 8}}, MOE, "mlp_config.num_experts=8"),
    ({"mlp_layer_types": ["dense", "sparse"]}, MOE, "mlp_layer_types has 'sparse'"),
    ({"ffn_type": "moe"}, MOE, "ffn_type has 'moe'"),
    ({"use_moe": True, "num_experts": 1}, MOE, "use_moe=true"),
    ({"num_experts": 0, "num_local_experts": 8}, MOE, "num_local_experts=8"),
    ({"num_topk_experts": 1, "moe_intermediate_size": 128}, MOE, "moe_intermediate_size=128"),
    ({"num_experts_per_tok": 2, "num_experts": 8}, MOE, "num_experts=8, num_experts_per_tok=2"),
    ({"architectures": ["LlamaMoEForCausalLM"]}, MOE, "architectures=LlamaMoEForCausalLM"),
    ({"architectures": ["LlamaMoeForCausalLM"]}, MOE, "architectures=LlamaMoeForCausalLM"),
    ({"auto_map": {"AutoModelForCausalLM": "modeling_x.LlamaMoEForCausalLM"}}, MOE,
     "auto_map.AutoModelForCausalLM=LlamaMoEForCausalLM"),
    ({"num_decoder_layers": 6, "num_encoder_layers": 6}, BOTH, "num_decoder_layers and num_encoder_layers"),
    ({"decoder_layers": 6}, BOTH, "decoder_layers"),
    ({"encoder": {"a": 1}, "decoder": {"a": 1}}, BOTH, "encoder and decoder"),
    ({"architectures": ["LlamaForConditionalGeneration"]}, "encoder-decoder or more than one tower",
     "architectures=LlamaForConditionalGeneration"),
    ({"cross_attention_layers": [3]}, CROSS, "cross_attention_layers"),
    ({"cross_attn_every_n_layers": 4}, CROSS, "cross_attn_every_n_layers=4"),
    ({"hybrid_layer_ids": [2, 4]}, HYBRID, "hybrid_layer_ids"),
    ({"mamba_layers": [0, 1]}, HYBRID, "mamba_layers"),
    ({"block_configs": [{"ffn": {"no_op": True}}]}, HYBRID, "block_configs"),
    ({"layer_types": ["RetNet"] * 5}, HYBRID, "layer_types has RetNet"),
    ({"layer_types": ["full_attention", 3]}, HYBRID, "layer_types has 3"),
    ({"layer_types": "RetNet"}, HYBRID, "layer_types has RetNet"),
    ({"mixer_types": ["attention", "gla"]}, HYBRID, "mixer_types has gla"),
    ({"use_linear_attention": True}, HYBRID, "use_linear_attention=true"),
    ({"architectures": ["LlamaMambaForCausalLM"]}, HYBRID, "architectures=LlamaMambaForCausalLM"),
    ({"architectures": ["LlamaVLForCausalLM"]}, TOWER, "architectures=LlamaVLForCausalLM"),
    ({"architectures": ["LlamaVisionModel"]}, TOWER, "architectures=LlamaVisionModel"),
    ({"use_cla": True}, "layers that share keys and values", "use_cla=true"),
    ({"qk_nope_head_dim": 128}, "multi-head latent attention", "qk_nope_head_dim=128"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "reason", "key"), REFUSED, ids=[case[2] for case in REFUSED])
def test_one_key_is_enough(more: dict[str, Any], reason: str, key: str) -> None:
    text = refusal({**LLAMA, **more})
    assert text.startswith(f"config: refused: {reason} (")
    assert key in text


# Keys that speak of experts, or of other layers, and say that there are none.
DENSE_ALL_THE_SAME: list[dict[str, Any]] = [
    {"num_experts": "0", "moe_intermediate_size": 128},
    {"num_experts": "1", "num_experts_per_tok": "2"},
    {"num_experts": [1, 1], "moe_topk": [1, 1], "num_shared_expert": 1, "use_mixed_mlp_moe": False},
    {"n_routed_experts": None, "num_experts_per_tok": 2, "moe_intermediate_size": 128},
    {"num_experts": False, "router_aux_loss_coef": 0.001},
    {"num_experts": 0, "architectures": ["LlamaMoEForCausalLM"]},
    {"num_experts_per_tok": 1, "moe_layer_freq": 1, "moe_top_k": None, "expert_capacity": -1},
    {"moe_layer_freq": [0, 0], "moe_layers": [], "use_moe": "false"},
    {"moe": {"num_experts": 1, "top_k": 2}, "moe_config": {}},
    {"moe_config": {"enabled": False, "top_k": 2}},
    {"ffn_config": {"hidden": 128}, "mlp_layer_types": ["dense", "dense"], "mlp_type": "default"},
    {"cross_attention_hidden_size": None, "cross_attention_layers": []},
    {"mamba_layers": [], "hybrid_layer_ids": None, "cache_implementation": "hybrid"},
    {"decoder_start_token_id": 2, "num_decoder_layers": 0, "encoder_layers": None},
    {"layer_types": ["sliding_attention", "full_attention"]},
    {"auto_map": {"AutoConfig": "configuration_x.MoEConfig", "AutoTokenizer": ["a.b", None]}},
]


@pytest.mark.parametrize("more", DENSE_ALL_THE_SAME, ids=map(str, range(len(DENSE_ALL_THE_SAME))))
def test_a_key_that_says_none_is_dense(more: dict[str, Any]) -> None:
    assert read_model({**LLAMA, **more}).spec.parameters() == DENSE


SWITCHES: list[tuple[dict[str, Any], str]] = [
    ({"is_encoder_decoder": "true"}, "is_encoder_decoder is 'true', a string, not true or false"),
    ({"is_encoder_decoder": 1}, "is_encoder_decoder is 1, a number, not true or false"),
    ({"add_cross_attention": "false"}, "add_cross_attention is 'false', a string, not true or false"),
]


@pytest.mark.parametrize(("more", "message"), SWITCHES)
def test_a_switch_that_is_none_is_an_error(more: dict[str, Any], message: str) -> None:
    assert message in refusal({**LLAMA, **more})


def test_a_class_of_another_family_is_said() -> None:
    for name in ("MistralForCausalLM", "LlamaSwarmForCausalLM"):
        notes = read_model({**LLAMA, "architectures": [name]}).notes
        assert notes == (f"warning: class {name} is not one of llama's: counted as a plain llama",)
    for name in ("LlamaForCausalLM", "LLaMAForCausalLM"):
        assert read_model({**LLAMA, "architectures": [name]}).notes == ()


def test_chatglm_is_a_decoder_in_spite_of_its_class() -> None:
    """Its class generates "on condition" but is one stack (its makers' modeling_chatglm.py)."""
    sizes = {"hidden_size": 64, "num_layers": 3, "num_attention_heads": 4, "ffn_hidden_size": 172}
    more = {"padded_vocab_size": 103, "seq_length": 99, "layernorm_epsilon": 1e-5, "add_qkv_bias": False}
    data = {"model_type": "chatglm", **sizes, **more, "tie_word_embeddings": False}
    named = {**data, "architectures": ["ChatGLMForConditionalGeneration"]}
    counts = [
        read_model(one).spec.parameters() for one in (named, {**data, "architectures": ["ChatGLMModel"]})
    ]
    assert counts == [2 * 103 * 64 + 64 + 3 * (4 * 64 * 64 + 3 * 64 * 172 + 2 * 64)] * 2
