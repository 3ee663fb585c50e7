"""Options that a count or its maths would get wrong: rope's scaling, Helium's heads, MPT's MLP."""

from __future__ import annotations

from typing import Any

import pytest

from seqplan.planner.hf_config import read_model
from tests.planner.hf_examples import LLAMA, refusal

KINDS = "known are default, linear, dynamic, yarn, longrope, su, llama3, mrope, proportional"
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192, "rope_type": "llama3"}  # fmt: skip

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"rope_type": "lineer", "factor": 2.0}, f"rope_scaling.rope_type is 'lineer'; {KINDS}"),
    ({"type": "ntk", "factor": 2.0}, f"rope_scaling.type is 'ntk'; {KINDS}"),
    ({"rope_type": "linear", "type": "liner", "factor": 2.0}, "rope_scaling.type is 'liner'"),
    ({"type": 3, "factor": 2.0}, "rope_scaling.type is 3, a number, not a word"),
    ({"type": "linear", "factor": "2"}, "rope_scaling.factor is '2', a string, not a number"),
    ({"type": "linear", "factor": True}, "rope_scaling.factor is true, a truth value, not a number"),
    ({"type": "linear", "factor": 0}, "rope_scaling.factor is 0 but must be positive"),
    ({"type": "dynamic", "factor": -4.0}, "rope_scaling.factor is -4.0 but must be positive"),
    ({"type": "yarn", "factor": float("inf")}, "rope_scaling.factor is not a finite number"),
    ({"type": "linear"}, "rope_scaling.factor is missing: linear scaling needs it"),
    ({"type": "yarn", "factor": None}, "rope_scaling.factor is missing: yarn scaling needs it"),
    ({"type": "default", "factor": "x"}, "rope_scaling.factor is 'x', a string"),
    ({**LLAMA3, "low_freq_factor": None}, "rope_scaling.low_freq_factor is missing: llama3 scaling needs it"),
    ({**LLAMA3, "high_freq_factor": 1}, "high_freq_factor 1 must be more than low_freq_factor 1.0"),
    ({**LLAMA3, "original_max_position_embeddings": 0}, "original_max_position_embeddings is 0 but must be"),
    ({"type": "yarn", "factor": 4.0, "beta_fast": -1}, "rope_scaling.beta_fast is -1 but must not be"),
    ({"type": "su", "long_factor": [1.0, "x"]}, "rope_scaling.long_factor has 'x', a string, not a number"),
]  # fmt: skip


@pytest.mark.parametrize(("scaling", "message"), WRONG)
def test_a_wrong_rope_scaling_is_named(scaling: dict[str, Any], message: str) -> None:
    assert message in refusal({**LLAMA, "rope_scaling": scaling})


def test_the_newer_form_is_named_by_its_own_key() -> None:
    newer = {"rope_theta": 1e4, "rope_type": "linear", "factor": 0}
    assert "rope_parameters.factor is 0 but" in refusal({**LLAMA, "rope_parameters": newer})
    window = {"full_attention": {"rope_type": "x"}, "sliding_attention": {"rope_type": "y"}}
    text = refusal({**LLAMA, "rope_parameters": window})
    assert "rope_parameters.full_attention.rope_type is 'x'" in text
    assert "rope_parameters.sliding_attention.rope_type is 'y'" in text


# As published: Qwen2-VL's text part, Phi-3's first release, HunYuan's dense models, DeepSeek's yarn.
RIGHT: list[tuple[dict[str, Any], str | None]] = [
    ({"type": "mrope", "mrope_section": [16, 24, 24]}, None),
    ({"rope_type": "default", "type": "mrope", "mrope_section": [16, 24, 24]}, None),
    ({"type": "su", "short_factor": [1.05, 1.1], "long_factor": [1.3, 2]}, "su"),
    ({"type": "dynamic", "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0,
      "mscale_all_dim": 0.0}, "dynamic"),
    ({"type": "yarn", "factor": 40, "attention_factor": None}, "yarn"),
    (LLAMA3, "llama3"),
    ({"rope_type": "proportional"}, "proportional"),
]  # fmt: skip


@pytest.mark.parametrize(("scaling", "kind"), RIGHT)
def test_known_scalings_pass(scaling: dict[str, Any], kind: str | None) -> None:
    loaded = read_model({**LLAMA, "rope_scaling": scaling})
    found = loaded.spec.rope_scaling
    assert (found and found["rope_type"]) == kind
    assert loaded.notes == ()


def test_a_factor_without_a_kind_has_no_effect_and_says_so() -> None:
    loaded = read_model({**LLAMA, "rope_scaling": {"factor": 4.0}})
    assert loaded.spec.rope_scaling is None
    assert loaded.notes == ("rope_scaling has no rope_type, so its factor 4.0 has no effect",)


_SIZES = {"hidden_size": 96, "num_hidden_layers": 5, "num_attention_heads": 6, "vocab_size": 331}
_MPT = {"model_type": "mpt", "d_model": 96, "n_heads": 6, "n_layers": 5, "max_seq_len": 77, "vocab_size": 331}

# From transformers' modeling_helium.py (o_proj is hidden x hidden) and modeling_mpt.py (4 x hidden is fixed).
NOT_COVERED: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "helium", **_SIZES, "num_key_value_heads": 2, "head_dim": 20},
     "num_attention_heads 6 x head_dim 20 is 120, but helium's attention output takes hidden_size 96"),
    ({**_MPT, "expansion_ratio": 3}, "expansion_ratio 3 is not covered, only 4"),
    ({**_MPT, "ffn_config": {"ffn_type": "mptglu"}},
     "ffn_config.ffn_type 'mptglu' is not covered, only 'mptmlp'"),
    ({**_MPT, "ffn_config": {"ffn_hidden_size": 300}},
     "ffn_config.ffn_hidden_size 300 is not covered, only 384"),
    ({**_MPT, "norm_type": "rmsnorm"}, "norm_type 'rmsnorm' is not covered"),
    ({"model_type": "phi", **_SIZES, "head_dim": 20, "qk_layernorm": True},
     "qk_layernorm is for heads of hidden_size / num_attention_heads, not of head_dim 20"),
    ({"model_type": "gpt_neo", "hidden_size": 64, "num_layers": 2, "num_heads": 4,
      "attention_types": [[["global", "mamba"], 1]]}, "attention_types has 'mamba'; known are global, local"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "message"), NOT_COVERED)
def test_an_option_that_is_not_counted_is_refused(data: dict[str, Any], message: str) -> None:
    assert message in refusal(data)


def test_mpt_with_its_usual_options() -> None:
    """Counts by hand: qkv and output 4 d^2, MLP 8 d^2, two norms; tied embedding; one norm at the end."""
    more = {
        "expansion_ratio": 4,
        "ffn_config": {"ffn_type": "mptmlp"},
        "norm_type": "low_precision_layernorm",
    }
    assert read_model({**_MPT, **more}).spec.parameters() == 5 * (12 * 96 * 96 + 2 * 96) + 331 * 96 + 96
