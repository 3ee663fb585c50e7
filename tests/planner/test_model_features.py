"""Which models a trainer can run: every field of ModelSpec is accounted for."""

from __future__ import annotations

from typing import Any

import pytest

from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.rules.legality import verdict
from seqplan.planner.rules.model_features import FEATURES, PLAIN, SPECIAL, missing_features
from tests.planner.samples import decoder, encoder, gpt2, layout, question, trainer

MODELS_NOT_RUN: list[tuple[dict[str, Any], str]] = [
    ({"parallel_block": True}, "parallel_block=true"),
    ({"position": "alibi"}, "position=alibi"),
    ({"sliding_window": 1024}, "sliding_window=1024 below seq_len=4096"),
    ({"attention_softcap": 50.0}, "attention_softcap=50"),
    ({"norm_position": "sandwich"}, "norm_position=sandwich"),
    ({"norm_position": "post"}, "norm_position=post in a decoder"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling=yarn"),
    ({"rope_fraction": 0.5}, "rope_fraction=0.5"),
    ({"other_maths": ("logit_bias=3",)}, "other_maths=logit_bias=3"),
]


@pytest.mark.parametrize(("changes", "says"), MODELS_NOT_RUN)
def test_a_model_that_cannot_be_run_is_costed_but_not_proposed(changes: dict[str, Any], says: str) -> None:
    asked = question(decoder(**changes))
    found = verdict(asked, layout(asked, dp=8))
    assert found.legal
    assert not found.runnable
    assert "sample trainer cannot train sample" in found.reasons[0].message
    assert says in found.reasons[0].message
    able = asked.model_copy(update={"implementation": trainer(model_features=FEATURES)})
    assert verdict(able, layout(able, dp=8)).runnable


def test_a_window_longer_than_the_sequence_and_known_rope_scalings_are_plain() -> None:
    assert missing_features(decoder(sliding_window=4096), 4096, ()) == []
    for kind in ("default", "linear", "llama3"):
        assert missing_features(decoder(rope_scaling={"rope_type": kind, "factor": 8.0}), 4096, ()) == []
    assert missing_features(encoder(), 512, ()) == []
    assert missing_features(gpt2(), 1024, ()) == []


SHAPES_ONLY = {
    # Fields of ModelSpec that change sizes, names or limits but not which maths a trainer must have.
    *(
        "name",
        "family",
        "architecture",
        "num_layers",
        "hidden_size",
        "ffn_hidden_size",
        "num_attention_heads",
    ),
    *("num_kv_heads", "head_dim", "vocab_size", "embedding_size", "max_position_embeddings", "position_rows"),
    *("position_size", "token_types", "norm_bias", "norm_eps", "embedding_norm", "final_norm", "rope_theta"),
    *(
        "rope_scaling",
        "attention_scale",
        "sliding_window",
        "window_layers",
        "qkv_bias",
        "attention_output_bias",
    ),
    *("mlp_bias", "tied_embeddings", "head_bias"),
}


def test_every_field_of_a_model_is_plain_a_feature_or_a_size() -> None:
    """A field that is added to ModelSpec must be placed, or a trainer would silently ignore it."""
    assert set(PLAIN) | SHAPES_ONLY == set(ModelSpec.model_fields)
    assert not set(PLAIN) & SHAPES_ONLY
    assert {"rope_scaling", "sliding_window"} <= set(SPECIAL)
