"""Wrong values in a config.json: each named with its key, value and type, all at once."""

from __future__ import annotations

from typing import Any

import pytest

from seqplan.planner.hf_config import read_model
from tests.planner.hf_examples import GPT2, LLAMA, refusal


def _without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in LLAMA.items() if key not in keys}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": "4096"}, "hidden_size is '4096', a string, not a whole number"),
    ({"vocab_size": "\uff13\uff12"}, "vocab_size is '\uff13\uff12', a string, not a whole number"),
    ({"num_hidden_layers": True}, "num_hidden_layers is true, a truth value, not a whole number"),
    ({"hidden_size": 4096.5}, "hidden_size is 4096.5, not a whole number"),
    ({"hidden_size": float("inf")}, "hidden_size is not finite"),
    ({"intermediate_size": float("nan")}, "intermediate_size is not a number"),
    ({"hidden_size": None}, "hidden_size is null"),
    ({"hidden_size": [4096]}, "hidden_size is [4096], a list, not a whole number"),
    ({"num_hidden_layers": -32}, "num_hidden_layers is -32 but must be at least 1"),
    ({"num_attention_heads": 0}, "num_attention_heads is 0 but must be at least 1"),
    ({"hidden_size": 10**30}, "hidden_size is 1e+30, out of range"),
    ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1e+06, out of range (at most 100,000)"),
    ({"hidden_size": 8196, "num_attention_heads": 64, "num_key_value_heads": 64},
     "hidden_size 8196 is not a multiple of num_attention_heads 64 (128.06 each; use 8192 or 8256)"),
    ({"num_key_value_heads": 64},
     "more kv heads (num_key_value_heads 64) than heads (num_attention_heads 32)"),
    ({"num_key_value_heads": 5}, "num_attention_heads 32 is not a multiple of num_key_value_heads 5"),
    ({"hidden_act": "sillu"}, "hidden_act is 'sillu'; known are silu"),
    ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false', a string, not true or false"),
    ({"rms_norm_eps": 0}, "rms_norm_eps is 0 but must be positive"),
    ({"rope_theta": "10k"}, "rope_theta is '10k', a string, not a number"),
    ({"rope_scaling": "linear"}, "rope_scaling is 'linear', a string, not an object"),
    ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM', not a list of words"),
    ({"head_dim": 7}, "partial_rotary_factor 1.0 of head_dim 7 is 7, an odd number"),
    ({"model_type": 3}, "model_type is 3, a number, not a word"),
    ({"model_type": "lama"}, "model_type 'lama' is not one that seqplan can count exactly; near: llama"),
    ({"model_type": "mistral", "layer_types": ["full_attention"]},
     "layer_types has 1 entries for num_hidden_layers 32"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "message"), WRONG)
def test_a_wrong_value_is_named(more: dict[str, Any], message: str) -> None:
    text = refusal({**LLAMA, **more})
    assert message in text
    assert text.startswith("config: ")


def test_all_wrong_values_are_named_at_once() -> None:
    text = refusal({**_without("vocab_size", "num_hidden_layers"), "model_type": "yi", "hidden_size": "4096"})
    for part in ("missing num_hidden_layers, vocab_size", "hidden_size is '4096'"):
        assert part in text


def test_a_whole_float_passes() -> None:
    assert read_model({**LLAMA, "num_hidden_layers": 32.0}).spec.num_layers == 32


def test_two_names_for_one_size_must_agree() -> None:
    assert read_model({**GPT2, "num_hidden_layers": 12}).spec.num_layers == 12
    assert "n_layer 12 and num_hidden_layers 24 disagree" in refusal({**GPT2, "num_hidden_layers": 24})


def test_what_is_odd_stands_beside_what_is_wrong() -> None:
    sizes = {"hidden_size": 8196, "intermediate_size": 8000, "vocab_size": 69}
    text = refusal({**LLAMA, **sizes, "num_attention_heads": 64, "num_key_value_heads": 64})
    assert "Also odd: intermediate_size 8000 is less than hidden_size 8196, vocab_size 69 is less" in text
