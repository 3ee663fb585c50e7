"""ModelSpec: the list of weights, their split over tp, the counts and the rules between fields."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

from seqplan.planner.model_spec import ModelSpec

# No two sizes, nor products of them that occur, are the same.
LLAMA: dict[str, Any] = {
    "name": "l",
    "family": "llama",
    "architecture": "decoder",
    "num_layers": 3,
    "hidden_size": 48,
    "ffn_hidden_size": 100,
    "num_attention_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 10,
    "vocab_size": 331,
    "embedding_size": 48,
    "max_position_embeddings": 77,
    "norm": "rmsnorm",
    "norm_bias": False,
    "norm_position": "pre",
    "norm_eps": 1e-5,
    "embedding_norm": False,
    "final_norm": True,
    "position": "rope",
    "activation": "swiglu",
    "qkv_bias": False,
    "attention_output_bias": False,
    "mlp_bias": False,
    "tied_embeddings": False,
    "head": "lm",
}
GPT: dict[str, Any] = {
    **LLAMA,
    "num_kv_heads": 6,
    "head_dim": 8,
    "norm": "layernorm",
    "norm_bias": True,
    "position": "learned",
    "position_rows": 77,
    "activation": "gelu_tanh",
    "qkv_bias": True,
    "attention_output_bias": True,
    "mlp_bias": True,
    "tied_embeddings": True,
}
BERT: dict[str, Any] = {
    **GPT,
    "architecture": "encoder",
    "norm_position": "post",
    "embedding_norm": True,
    "final_norm": False,
    "token_types": 2,
    "head": "mlm",
    "head_bias": True,
}

# name -> (place, shape, split). What the trainer's modules are called: the two lists are held together there.
LLAMA_TENSORS = {
    "embedding.tokens.weight": ("embedding", (331, 48), "vocab"),
    "attention.query.weight": ("layer", (60, 48), "column"),
    "attention.key.weight": ("layer", (20, 48), "column"),
    "attention.value.weight": ("layer", (20, 48), "column"),
    "attention.output.weight": ("layer", (48, 60), "row"),
    "mlp.gate.weight": ("layer", (100, 48), "column"),
    "mlp.up.weight": ("layer", (100, 48), "column"),
    "mlp.down.weight": ("layer", (48, 100), "row"),
    "attention_norm.weight": ("layer", (48,), "replicated"),
    "mlp_norm.weight": ("layer", (48,), "replicated"),
    "final_norm.weight": ("final", (48,), "replicated"),
    "head.weight": ("head", (331, 48), "vocab"),
}
BERT_TENSORS = {
    "embedding.tokens.weight": ("embedding", (331, 48), "vocab"),
    "embedding.positions.weight": ("embedding", (77, 48), "replicated"),
    "embedding.token_types.weight": ("embedding", (2, 48), "replicated"),
    "embedding.norm.weight": ("embedding", (48,), "replicated"),
    "embedding.norm.bias": ("embedding", (48,), "replicated"),
    **{f"attention.{part}.weight": ("layer", (48, 48), "column") for part in ("query", "key", "value")},
    **{f"attention.{part}.bias": ("layer", (48,), "column") for part in ("query", "key", "value")},
    "attention.output.weight": ("layer", (48, 48), "row"),
    "attention.output.bias": ("layer", (48,), "replicated"),
    "mlp.up.weight": ("layer", (100, 48), "column"),
    "mlp.up.bias": ("layer", (100,), "column"),
    "mlp.down.weight": ("layer", (48, 100), "row"),
    "mlp.down.bias": ("layer", (48,), "replicated"),
    **{f"{norm}.{kind}": ("layer", (48,), "replicated") for norm in ("attention_norm", "mlp_norm")
       for kind in ("weight", "bias")},
    "head.transform.weight": ("head", (48, 48), "replicated"),
    "head.transform.bias": ("head", (48,), "replicated"),
    "head.norm.weight": ("head", (48,), "replicated"),
    "head.norm.bias": ("head", (48,), "replicated"),
    "head.weight": ("head", (331, 48), "vocab"),
    "head.bias": ("head", (331,), "vocab"),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "expected"), [(LLAMA, LLAMA_TENSORS), (BERT, BERT_TENSORS)])
def test_every_weight_is_listed(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    tensors = ModelSpec(**fields).parameter_tensors()
    assert {t.name: (t.place, t.shape, t.tp_split) for t in tensors} == expected
    assert len(tensors) == len(expected)


def test_counts_follow_from_the_list() -> None:
    """By hand: embedding + 3 layers + final norm + head."""
    layer = 48 * 60 * 2 + 2 * 48 * 20 + 3 * 48 * 100 + 2 * 48
    model = ModelSpec(**LLAMA)
    assert model.parameters() == 2 * 331 * 48 + 3 * layer + 48
    assert model.parameters_without_head() == model.parameters() - 331 * 48
    assert model.layer_matmul_parameters == layer - 2 * 48
    assert model.head_matmul_parameters == 331 * 48
    assert (model.attention_size, model.kv_size) == (60, 20)


def test_a_tied_head_counts_once_but_multiplies() -> None:
    model = ModelSpec(**{**LLAMA, "tied_embeddings": True})
    head = next(t for t in model.parameter_tensors() if t.name == "head.weight")
    assert (head.tied_to, head.elements) == ("embedding.tokens.weight", 0)
    assert model.parameters() == ModelSpec(**LLAMA).parameters() - 331 * 48
    assert model.parameters() == model.parameters_without_head()
    assert model.head_matmul_parameters == 331 * 48


def test_a_masked_token_head_multiplies_twice() -> None:
    assert ModelSpec(**BERT).head_matmul_parameters == 331 * 48 + 48 * 48


def test_a_padded_vocabulary_changes_three_tensors() -> None:
    plain, padded = (ModelSpec(**BERT).parameter_tensors(rows) for rows in (None, 384))
    changed = {a.name: b.shape for a, b in zip(plain, padded, strict=True) if a.shape != b.shape}
    assert changed == {
        "embedding.tokens.weight": (384, 48),
        "head.weight": (384, 48),
        "head.bias": (384,),
    }


# fields beside LLAMA's -> by how much the count changes, by hand
VARIANTS: list[tuple[dict[str, Any], int]] = [
    ({"qk_norm": "per_head"}, 3 * 2 * 10),
    ({"qk_norm": "per_head", "qk_norm_bias": True}, 3 * 4 * 10),
    ({"qk_norm": "each_head"}, 3 * (6 + 2) * 10),
    ({"qk_norm": "full"}, 3 * (60 + 20)),
    ({"norm_position": "sandwich"}, 3 * 2 * 48),
    ({"norm_position": "output"}, 0),
    ({"parallel_block": True}, 0),
    ({"parallel_block": True, "shared_norm": True}, -3 * 48),
    ({"final_norm": False}, -48),
    ({"embedding_norm": True}, 48),
    ({"embedding_norm": True, "first_attention_norm": False}, 48 - 48),
    ({"norm": "layernorm_without_weights"}, -(3 * 2 + 1) * 48),
    ({"norm_bias": True}, (3 * 2 + 1) * 48),
    ({"activation": "relu2"}, -3 * 48 * 100),
    ({"qkv_bias": True}, 3 * (60 + 2 * 20)),
    ({"attention_output_bias": True}, 3 * 48),
    ({"mlp_bias": True}, 3 * (2 * 100 + 48)),
    ({"head_bias": True}, 331),
    ({"head": "none"}, -331 * 48),
    ({"position": "learned", "position_rows": 79}, 79 * 48),
    (
        {"embedding_size": 20, "embedding_projection": "linear", "output_projection": True},
        -2 * 331 * 28 + 2 * 20 * 48,
    ),
    ({"embedding_size": 20, "embedding_projection": "linear_with_bias"}, -331 * 28 + 20 * 48 + 48),
    (
        {
            "extra_tensors": [
                {"name": "x", "place": "layer", "shape": [2, 5], "tp_split": "replicated"},
                {"name": "y", "place": "final", "shape": [7], "tp_split": "replicated"},
            ]
        },
        3 * 10 + 7,
    ),
]


@pytest.mark.parametrize(
    ("more", "difference"), VARIANTS, ids=[str(sorted(more))[:60] for more, _ in VARIANTS]
)
def test_each_option_counts(more: dict[str, Any], difference: int) -> None:
    assert ModelSpec(**{**LLAMA, **more}).parameters() - ModelSpec(**LLAMA).parameters() == difference


def test_shared_layers_count_once() -> None:
    once = ModelSpec(**{**LLAMA, "num_layers": 1}).parameters()
    assert ModelSpec(**{**LLAMA, "shared_layers": True}).parameters() == once


def test_all_broken_rules_are_told_at_once() -> None:
    wrong = {
        "num_kv_heads": 4,
        "position": "none",
        "position_rows": 9,
        "shared_norm": True,
        "norm_bias": True,
    }
    with pytest.raises(ValidationError) as caught:
        ModelSpec(**{**LLAMA, **wrong, "norm": "rmsnorm_without_weights", "window_layers": [1]})
    text = str(caught.value)
    for rule in (
        "num_attention_heads 6 is not a multiple of num_kv_heads 4",
        "position none has no table, but position_rows is 9",
        "window_layers is set but sliding_window is not",
        "norm rmsnorm_without_weights has no bias, but norm_bias is true",
        "shared_norm needs parallel_block",
    ):
        assert rule in text


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"num_kv_heads": 12}, "num_kv_heads 12 is more than num_attention_heads 6"),
    (
        {"embedding_size": 20},
        "embedding_size 20 differs from hidden_size 48 but embedding_projection is none",
    ),
    ({"position": "learned"}, "position learned needs position_rows"),
    ({"position": "learned", "position_rows": 5}, "max_position_embeddings 77 is more than position_rows 5"),
    ({"rope_fraction": 0.55}, "rope_fraction 0.55 of head_dim 10 is 5, an odd number"),
    ({"sliding_window": 4, "window_layers": [3]}, "window_layers names layer 3, but num_layers is 3"),
    ({"head": "none", "tied_embeddings": True}, "head none has no vocabulary matrix"),
    ({"num_layers": 0}, "greater than or equal to 1"),
    ({"num_layers": True}, "valid integer"),
    ({"hidden_size": "48"}, "valid integer"),
    ({"hiden_size": 48}, "Extra inputs are not permitted"),
]


@pytest.mark.parametrize(("more", "message"), BROKEN)
def test_a_broken_rule_names_its_numbers(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ModelSpec(**{**LLAMA, **more})
    assert message in str(caught.value)


def test_windows_and_flags() -> None:
    some = ModelSpec(**{**LLAMA, "sliding_window": 8, "window_layers": [0, 2]})
    assert [some.window_of(layer) for layer in range(3)] == [8, None, 8]
    assert ModelSpec(**{**LLAMA, "sliding_window": 8}).window_of(1) == 8
    assert (ModelSpec(**LLAMA).gated_mlp, ModelSpec(**GPT).gated_mlp) == (True, False)
    assert (ModelSpec(**GPT).causal, ModelSpec(**BERT).causal) == (True, False)


def test_a_spec_survives_json() -> None:
    extra = [{"name": "x", "place": "layer", "shape": [2, 5], "tp_split": "replicated"}]
    model = ModelSpec(**{**LLAMA, "extra_tensors": extra, "sliding_window": 8, "window_layers": [0, 2]})
    assert ModelSpec(**json.loads(model.model_dump_json())) == model
    assert math.prod(model.extra_tensors[0].shape) == 10
