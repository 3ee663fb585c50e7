"""Kinds of model and of file that are refused, each by the key that says what it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seqplan.planner.hf_config import read_model
from tests.planner.hf_examples import GPT2, LLAMA, refusal

REFUSED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"num_local_experts": 8}, ("mixture of experts (num_local_experts=8)",)),
    (
        {"n_routed_experts": 64, "kv_lora_rank": 512},
        ("n_routed_experts=64", "multi-head latent attention (kv_lora"),
    ),
    ({"model_type": "mixtral"}, ("mixture of experts (model_type=mixtral)",)),
    ({"ffn_config": {"moe_num_experts": 16}}, ("ffn_config.moe_num_experts=16",)),
    ({"num_experts": [1, 8]}, ("num_experts",)),
    ({"enable_moe_block": True}, ("enable_moe_block=true",)),
    ({"is_encoder_decoder": True}, ("encoder-decoder (is_encoder_decoder=true)",)),
    ({"model_type": "t5"}, ("encoder-decoder (model_type=t5)",)),
    ({"encoder_layers": 6, "decoder_layers": 6}, ("encoder_layers and decoder_layers",)),
    ({"add_cross_attention": True}, ("add_cross_attention=true",)),
    ({"model_type": "mamba", "state_size": 16}, ("state-space or hybrid layers (state_size=16)",)),
    ({"model_type": "rwkv"}, ("model_type=rwkv",)),
    ({"layer_types": ["linear_attention", "full_attention"]}, ("layer_types has linear_attention",)),
    ({"hybrid_override_pattern": "M-M*"}, ("hybrid_override_pattern='M-M*'",)),
    ({"vision_config": {"hidden_size": 1024}}, ("more than one tower (vision_config)",)),
    ({"mm_vision_tower": "clip"}, ("mm_vision_tower='clip'",)),
    (
        {
            "text_config": {"layer_types": ["linear_attention"], "num_experts": 64},
            "vision_config": {"depth": 27},
        },
        ("text_config.num_experts=64", "text_config.layer_types", "more than one tower (vision_config)"),
    ),
]


@pytest.mark.parametrize(("more", "words"), REFUSED)
def test_other_kinds_of_model_are_refused_by_key(more: dict[str, Any], words: tuple[str, ...]) -> None:
    text = refusal({**LLAMA, **more})
    assert text.startswith("config: refused: ")
    for word in words:
        assert word in text


HARMLESS: list[dict[str, Any]] = [
    {"num_experts": 0},
    {"num_experts": 1},
    {"num_local_experts": None},
    {"vision_config": None, "audio_config": {}},
    {"is_encoder_decoder": False, "add_cross_attention": False},
    {"layer_types": ["full_attention"] * 32},
    {"kv_lora_rank": None},
    {"num_experts_per_tok": 2, "num_experts": 0},
]


@pytest.mark.parametrize("more", HARMLESS)
def test_a_key_that_says_no_is_not_arefusal(more: dict[str, Any]) -> None:
    assert read_model({**LLAMA, **more}).spec.parameters() == 6_738_415_616


def test_of_several_towers_the_language_model_can_be_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "llava.json"
    text = {"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096}
    vision = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
    path.write_text(json.dumps({"model_type": "llava", "text_config": text, "vision_config": vision}))
    assert f"Only the language model can be planned: pass {path}#text_config" in refusal(path)
    loaded = read_model(f"{path}#text_config")
    # Llama-2-7B (the defaults of LlamaConfig) with 64 more rows in embedding and head
    assert loaded.spec.parameters() == 6_738_415_616 + 2 * 64 * 4096
    assert loaded.notes[0] == "only text_config is planned; every other part of llava.json is left out"
    assert "num_hidden_layers 32, hidden_size 4096, num_attention_heads 32" in loaded.notes[1]
    path.write_text(json.dumps({"model_type": "llava", "text_config": {}, "vision_config": vision}))
    assert "more than one tower" in refusal(path)
    assert "an empty object" in refusal(f"{path}#text_config")
    assert "has no object nothing" in refusal(f"{path}#nothing")


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({}, "an empty object"),
    ({"metadata": {"total_size": 1}, "weight_map": {"a": "b"}}, "a weight index"),
    ({"bos_token_id": 1, "eos_token_id": 2, "transformers_version": "4"}, "a generation config"),
    ({"add_bos_token": True, "tokenizer_class": "LlamaTokenizer"}, "a tokenizer file"),
    ({"peft_type": "LORA", "r": 8, "lora_alpha": 16}, "a LoRA or other PEFT adapter"),
    ({"zero_optimization": {"stage": 2}}, "a DeepSpeed configuration"),
    ({"dim": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": -1}, "Meta's own params.json"),
    ({"name": "lab", "gpus_per_node": 8}, "a cluster file"),
    ({"emb_size": 768, "hidden_size": 768, "heads_num": 12, "layers_num": 12},
     "missing model_type: the family is unknown, so nothing can be counted. The keys that look like sizes"
     " (emb_size 768, hidden_size 768, heads_num 12, layers_num 12)"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "message"), OTHERS)
def test_other_files_are_recognised(data: dict[str, Any], message: str) -> None:
    assert message in refusal(data)


def test_files_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "my model"
    folder.mkdir()
    assert "the folder has no config.json" in refusal(folder)
    (folder / "config.json").write_text(json.dumps(GPT2))
    for path in (folder, folder / "config.json"):
        assert read_model(path).spec.name == "my model"
    other = tmp_path / "small#1.json"
    other.write_text(json.dumps(GPT2))
    assert read_model(str(other)).spec.name == "small#1"
    assert read_model(other, name="mine").spec.name == "mine"
    other.write_text(json.dumps({**GPT2, "n_embd": "x"}))
    assert refusal(other).startswith(f"{other}: n_embd is 'x'")


def test_a_missing_path_says_that_nothing_is_downloaded(tmp_path: Path) -> None:
    assert "no such file. It looks like a Hugging Face model id; nothing is downloaded." in refusal(
        "org/model-7b"
    )
    assert refusal(tmp_path / "none.json").endswith("no such file. Pass the path of its config.json.")
    assert "not a path" in refusal("a\0b")
    assert "cannot be read" in refusal("x" * 5000)


def test_planning_alone_does_not_import_the_readers() -> None:
    code = "import sys, seqplan.planner.model_spec as m; print([n for n in sys.modules if '.hf' in n])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
