"""Reading a config.json: what is accepted, what is assumed and said, and what the maths needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import seqplan
from seqplan.planner.hf_config import read_model
from seqplan.planner.model_spec import ModelSpec
from tests.planner.hf_examples import GPT2, LLAMA, refusal


def _without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in LLAMA.items() if key not in keys}


def test_a_full_config_needs_no_notes() -> None:
    loaded = read_model(LLAMA)
    assert loaded.spec.parameters() == 6_738_415_616
    assert loaded.spec.parameters_without_head() == 6_607_343_616
    assert loaded.notes == ()


# What a published config reads as: the same as our own profile of that model.
PUBLISHED: dict[str, dict[str, Any]] = {
    "llama2-7b": LLAMA,
    "gpt2": GPT2,
    "llama3-405b": {
        **LLAMA, "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126,
        "num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 500000.0,
        "max_position_embeddings": 131072, "rope_scaling": {
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    },
    "mistral-7b": {
        **LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "intermediate_size": 14336,
        "num_key_value_heads": 8, "max_position_embeddings": 32768, "sliding_window": 4096,
    },
    "qwen2.5-0.5b": {
        **LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896,
        "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": 32768,
        "max_window_layers": 24,
    },
    "qwen3-0.6b": {
        **LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
        "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6,
        "rope_theta": 1000000, "tie_word_embeddings": True, "attention_bias": False,
    },
    "bert-base": {
        "architectures": ["BertForMaskedLM"], "model_type": "bert", "hidden_act": "gelu", "hidden_size": 768,
        "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
        "num_attention_heads": 12, "num_hidden_layers": 12, "type_vocab_size": 2, "vocab_size": 30522,
        "position_embedding_type": "absolute",
    },
    "gpt-neox-20b": {
        "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_act": "gelu",
        "hidden_size": 6144, "intermediate_size": 24576, "layer_norm_eps": 1e-5,
        "max_position_embeddings": 2048,
        "num_attention_heads": 64, "num_hidden_layers": 44, "rotary_emb_base": 10000, "rotary_pct": 0.25,
        "tie_word_embeddings": False, "vocab_size": 50432,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_is_our_profile(name: str) -> None:
    path = Path(seqplan.__file__).parent / "profiles" / "models" / f"{name}.yaml"
    fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    del fields["source"]
    assert read_model(PUBLISHED[name], name=name).spec == ModelSpec(**fields)


def test_a_default_is_said_with_its_class() -> None:
    loaded = read_model(_without("intermediate_size", "tie_word_embeddings", "num_key_value_heads"))
    assert loaded.spec.ffn_hidden_size == 11008
    assert loaded.notes == (
        "left out by the file, taken from the defaults of LlamaConfig (transformers):"
        " num_key_value_heads 32 (= num_attention_heads), intermediate_size 11008, tie_word_embeddings false",
    )


def test_a_size_that_follows_from_another_is_said() -> None:
    loaded = read_model(GPT2)
    assert loaded.spec.ffn_hidden_size == 3072
    assert "n_inner 3072 (= 4 x n_embd)" in loaded.notes[0]


@pytest.mark.parametrize("absent", ["num_hidden_layers", "hidden_size", "num_attention_heads"])
def test_what_makes_the_model_has_no_default(absent: str) -> None:
    assert f"missing {absent} (model_type llama)" in refusal(_without(absent))


def test_all_missing_keys_are_named_at_once() -> None:
    assert "missing num_hidden_layers, hidden_size" in refusal(_without("hidden_size", "num_hidden_layers"))
    text = refusal({"model_type": "baichuan", "hidden_size": 64, "hidden_act": "silu"})
    assert text == (
        "config: missing num_hidden_layers, num_attention_heads, vocab_size, max_position_embeddings,"
        " intermediate_size, rms_norm_eps, tie_word_embeddings (model_type baichuan)."
        " No default is taken for them."
    )


NOTES: list[tuple[dict[str, Any], str]] = [
    ({"quantization_config": {"bits": 4}}, "quantization_config: the quantisation"),
    ({"num_nextn_predict_layers": 1}, "num_nextn_predict_layers: multi-token prediction layers left out"),
    ({"architectures": None}, "counted with the usual head (next-token)"),
    ({"architectures": ["MyLlama"]}, "class MyLlama is not known: counted with the usual head (next-token)"),
    ({"architectures": ["LlamaForSequenceClassification"]}, "a classification head of 2 labels"),
    ({"vocab_size": 69}, "vocab_size 69 is less than the 256 bytes"),
    ({"intermediate_size": 100}, "intermediate_size 100 is less than hidden_size 4096"),
    ({"sliding_window": 1024, "_sliding_window_pattern": 6},
     "keys of other families, without effect in llama: _sliding_window_pattern 6, sliding_window 1024"),
    ({"alibi": True, "rotary_pct": 1.0}, "keys of other families, without effect in llama: alibi true"),
    ({"model_type": None}, "no model_type: read as llama, after the class LlamaForCausalLM"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "note"), NOTES)
def test_what_was_assumed_is_said(more: dict[str, Any], note: str) -> None:
    assert note in "\n".join(read_model({**LLAMA, **more}).notes)


def test_options_that_a_trainer_must_see() -> None:
    """From transformers' code: GPT-Neo's unscaled scores, Gemma 2's caps and windows, Granite's factors."""
    neo = read_model(
        {"model_type": "gpt_neo", "hidden_size": 64, "num_layers": 4, "num_heads": 4, "window_size": 9}
    )
    assert (neo.spec.attention_scale, neo.spec.sliding_window, neo.spec.window_layers) == (1.0, 9, (1, 3))
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    gemma = read_model({"model_type": "gemma2", **sizes, "query_pre_attn_scalar": 64}).spec
    assert (gemma.attention_scale, gemma.attention_softcap, gemma.logit_softcap) == (0.125, 50.0, 30.0)
    assert (gemma.window_layers, gemma.embedding_scale, gemma.norm_weight_plus_one) == ((0, 2), 8.0, True)
    granite = read_model({
        "model_type": "granite", **sizes, "attention_multiplier": 0.25, "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22, "logits_scaling": 16.0,
    }).spec  # fmt: skip
    assert (granite.attention_scale, granite.embedding_scale) == (0.25, 12.0)
    assert (granite.residual_scale, granite.logit_scale) == (0.22, 1 / 16)
    smol = read_model({"model_type": "smollm3", **sizes}).spec
    assert (smol.rope_skip_layers, smol.sliding_window) == ((3,), None)
    opt = read_model({"model_type": "opt", **sizes}).spec
    assert (opt.position_rows, opt.max_position_embeddings) == (2050, 2048)
    roberta = read_model({"model_type": "roberta", **sizes, "max_position_embeddings": 514}).spec
    assert (roberta.position_rows, roberta.max_position_embeddings) == (514, 512)
    inverse = read_model({**GPT2, "scale_attn_by_inverse_layer_idx": True}).spec
    assert inverse.other_maths == ("scale_attn_by_inverse_layer_idx=true",)


ROPE: list[tuple[dict[str, Any], tuple[float, float, Any]]] = [
    ({}, (10000.0, 1.0, None)),
    ({"rope_scaling": None}, (10000.0, 1.0, None)),
    ({"rope_scaling": {"type": "linear", "factor": 4.0}},
     (10000.0, 1.0, {"rope_type": "linear", "factor": 4.0})),
    ({"rope_scaling": {"rope_type": "default"}}, (10000.0, 1.0, None)),
    ({"rope_theta": None, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, (5e5, 1.0, None)),
    ({"rope_theta": None, "rope_parameters": {"rope_theta": 5e5, "rope_type": "yarn", "factor": 4.0,
                                              "partial_rotary_factor": 0.5}},
     (5e5, 0.5, {"rope_type": "yarn", "factor": 4.0})),
]  # fmt: skip


@pytest.mark.parametrize(("more", "expected"), ROPE)
def test_rotary_positions_of_old_and_new_files(
    more: dict[str, Any], expected: tuple[float, float, Any]
) -> None:
    spec = read_model({**LLAMA, **more}).spec
    assert (spec.rope_theta, spec.rope_fraction, spec.rope_scaling) == expected
