"""JSON files that lie beside a config.json and are passed by mistake, told by their keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqplan.planner.hf.reader import show

_BESIDE = "Pass the config.json that lies beside it."

# (keys that all must be there, what the file is, what to do instead); the first match wins.
_FILES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("weight_map",), "a weight index (safetensors or PyTorch)", _BESIDE),
    (("peft_type",), "a LoRA or other PEFT adapter", "Pass the config.json of its base model."),
    (("lora_alpha",), "a LoRA adapter", "Pass the config.json of its base model."),
    (("_class_name", "_diffusers_version"), "a diffusers pipeline or model", ""),
    (("tokenizer_class",), "a tokenizer file", _BESIDE),
    (("added_tokens_decoder",), "a tokenizer file", _BESIDE),
    (("model_max_length",), "a tokenizer file", _BESIDE),
    (("added_tokens",), "a tokenizer file (tokenizer.json)", _BESIDE),
    (("image_processor_type",), "an image processor file", _BESIDE),
    (("feature_extractor_type",), "a feature extractor file", _BESIDE),
    (("processor_class",), "a processor file", _BESIDE),
    (("zero_optimization",), "a DeepSpeed configuration", "Pass the model's config.json."),
    (("log_history",), "a trainer_state.json", _BESIDE),
    (("per_device_train_batch_size",), "training arguments", "Pass the model's config.json."),
    (
        ("dim", "n_heads", "n_layers"),
        "Meta's own params.json",
        "Pass the config.json of the converted model.",
    ),
    (("pooling_mode_mean_tokens",), "a sentence-transformers pooling file", _BESIDE),
    (("do_lower_case", "max_seq_length"), "a sentence-transformers file", _BESIDE),
    (("schema", "layout"), "a plan file of seqplan", "Pass a model: a built-in name or a config.json."),
    (("gpus_per_node",), "a cluster file", "Pass it with --cluster, and a model as MODEL."),
    (("device", "intra_node"), "a cluster file", "Pass it with --cluster, and a model as MODEL."),
    (("bos_token", "eos_token"), "a tokenizer file", _BESIDE),
    (("eos_token",), "a tokenizer file", _BESIDE),
)
_GENERATION = {
    "bos_token_id", "eos_token_id", "pad_token_id", "temperature", "top_p", "top_k", "do_sample",
    "max_length", "max_new_tokens", "repetition_penalty", "transformers_version", "_from_model_config",
    "num_beams", "decoder_start_token_id", "chat_format", "cache_implementation", "trust_remote_code",
}  # fmt: skip
_SIZES = {
    "hidden_size", "n_embd", "d_model", "dim", "emb_size", "num_hidden_layers", "n_layer", "n_layers",
    "num_layers", "layers_num", "num_attention_heads", "n_head", "n_heads", "num_heads", "heads_num",
    "intermediate_size", "ffn_dim", "feedforward_size", "vocab_size",
}  # fmt: skip


def what_it_is(data: Mapping[str, Any]) -> tuple[str, str] | None:
    """What a file without model_type is, and what to pass instead; None where nothing is recognised."""
    if not data:
        return "an empty object", "Pass a Hugging Face config.json."
    for keys, kind, hint in _FILES:
        if all(key in data for key in keys):
            return kind, hint
    if data.keys() <= _GENERATION:
        return "a generation config", _BESIDE
    return None


def size_like(data: Mapping[str, Any]) -> str:
    """The keys that look like sizes, for the error about a file whose family is unknown."""
    found = [key for key in data if key in _SIZES]
    return ", ".join(f"{key} {show(data[key])}" for key in found)
