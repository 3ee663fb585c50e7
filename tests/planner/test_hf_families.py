"""Every family against transformers: its own modules, built on the meta device, must count the same.

The sizes are such that no two of them, and no sums that a slip would take for them, coincide: a swapped axis
or a bias too many changes the count. The config goes through JSON, as a file would.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import transformers

from seqplan.planner.hf.families import FAMILIES
from seqplan.planner.hf.reader import family_defaults
from seqplan.planner.hf_config import read_model

LLAMA = {
    "hidden_size": 96,
    "intermediate_size": 172,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 331,
    "max_position_embeddings": 77,
}
FREE = {**LLAMA, "head_dim": 20}
BERT = {
    "hidden_size": 96,
    "intermediate_size": 172,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "vocab_size": 331,
    "max_position_embeddings": 77,
    "type_vocab_size": 3,
}
GPT2 = {"n_embd": 96, "n_layer": 5, "n_head": 6, "n_positions": 77, "vocab_size": 331}
UNTIED = {"tie_word_embeddings": False}
TIED = {"tie_word_embeddings": True}

# model_type, the config's values beside the defaults of its class
DECODERS: list[tuple[str, dict[str, Any]]] = [
    ("llama", LLAMA),
    ("llama", {**FREE, **TIED, "attention_bias": True, "mlp_bias": True}),
    ("mistral", FREE),
    ("ministral", FREE),
    ("ministral3", FREE),
    ("qwen2", {**LLAMA, **TIED}),
    ("qwen3", {**FREE, "attention_bias": True}),
    ("gemma", FREE),
    ("gemma2", {**FREE, "attention_bias": True}),
    ("gemma3_text", FREE),
    ("vaultgemma", FREE),
    ("phi3", {**LLAMA, "partial_rotary_factor": 0.5, "pad_token_id": 0}),
    ("olmo", {**LLAMA, "attention_bias": True}),
    ("olmo", FREE),
    ("olmo2", {**LLAMA, "attention_bias": True}),
    ("olmo3", LLAMA),
    ("granite", {**LLAMA, **TIED, "attention_bias": True, "mlp_bias": True}),
    ("cohere", {**LLAMA, "use_qk_norm": True, "attention_bias": True}),
    ("cohere", {**LLAMA, **UNTIED}),
    ("cohere2", FREE),
    ("stablelm", {**LLAMA, "use_qkv_bias": True, "qk_layernorm": True}),
    ("stablelm", {**LLAMA, "use_parallel_residual": True}),
    ("glm", {**FREE, "pad_token_id": 0}),
    ("glm4", {**FREE, "attention_bias": False, "pad_token_id": 0}),
    ("exaone4", FREE),
    ("smollm3", {**LLAMA, "attention_bias": True, "mlp_bias": True, "pad_token_id": 0}),
    ("seed_oss", FREE),
    ("seed_oss", {**FREE, "attention_bias": False, "attention_out_bias": True, "mlp_bias": True}),
    ("helium", {**LLAMA, "head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    ("ernie4_5", {**FREE, "use_bias": True}),
    ("hunyuan_v1_dense", {**FREE, "attention_bias": True}),
    ("arcee", {**FREE, "mlp_bias": True, "attention_bias": True}),
    ("apertus", {**LLAMA, "attention_bias": True}),
    ("cwm", FREE),
    ("iquestcoder", {**FREE, "attention_bias": True, "mlp_bias": True}),
    ("internlm3", FREE),
    ("phi", {**LLAMA, "qk_layernorm": True}),
    ("phi", LLAMA),
    ("phi", FREE),
    ("persimmon", LLAMA),
    ("persimmon", FREE),
    ("persimmon", {**LLAMA, "qk_layernorm": False}),
    ("starcoder2", LLAMA),
    ("starcoder2", {**LLAMA, **UNTIED, "use_bias": False}),
    ("nemotron", {**FREE, "attention_bias": True, "mlp_bias": True}),
    ("jais2", FREE),
    ("gpt2", GPT2),
    ("gpt2", {**GPT2, **UNTIED, "n_inner": 172}),
    ("gpt-sw3", GPT2),
    ("openai-gpt", GPT2),
    ("gpt_bigcode", {**GPT2, "n_inner": 172}),
    ("gpt_bigcode", {**GPT2, "multi_query": False}),
    ("gpt_neo", {
        "hidden_size": 96, "num_layers": 5, "num_heads": 6, "vocab_size": 331, "max_position_embeddings": 77,
        "attention_types": [[["global", "local"], 2], [["local"], 1]],
    }),
    ("gptj", {**GPT2, "rotary_dim": 8, "n_inner": 172}),
    ("codegen", {**GPT2, "n_head": 4, "rotary_dim": 8}),
    ("gpt_neox", LLAMA),
    ("gpt_neox", {**LLAMA, **TIED, "attention_bias": False, "use_parallel_residual": False}),
    ("gpt_neox_japanese", LLAMA),
    ("opt", {**BERT, "ffn_dim": 172, "word_embed_proj_dim": 40}),
    ("opt", {**BERT, "ffn_dim": 172, "word_embed_proj_dim": 96, "do_layer_norm_before": False}),
    ("opt", {**BERT, **UNTIED, "ffn_dim": 172, "enable_bias": False, "layer_norm_elementwise_affine": False,
             "word_embed_proj_dim": 96}),
    ("bloom", {"hidden_size": 96, "n_layer": 5, "n_head": 6, "vocab_size": 331}),
    ("falcon", {**LLAMA, "ffn_hidden_size": 172}),
    ("falcon", {**LLAMA, "new_decoder_architecture": True, "num_kv_heads": 2}),
    ("falcon", {**LLAMA, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}),
    ("falcon", {**LLAMA, "multi_query": False, "alibi": True, "parallel_attn": False, "bias": True}),
    ("falcon", {**LLAMA, **UNTIED, "multi_query": False, "num_kv_heads": 6}),
    ("mpt", {"d_model": 96, "n_heads": 6, "n_layers": 5, "max_seq_len": 77, "vocab_size": 331}),
    ("xglm", {"d_model": 96, "ffn_dim": 172, "num_layers": 5, "attention_heads": 6, "vocab_size": 331}),
    ("biogpt", BERT),
]  # fmt: skip
ENCODERS: list[tuple[str, dict[str, Any]]] = [
    ("bert", BERT),
    ("bert", {**BERT, **UNTIED}),
    ("roberta", BERT),
    ("xlm-roberta", BERT),
    ("camembert", BERT),
    ("data2vec-text", BERT),
    ("roberta-prelayernorm", BERT),
    ("xlm-roberta-xl", BERT),
    ("megatron-bert", BERT),
    ("ernie", {**BERT, "use_task_id": True, "task_type_vocab_size": 7}),
    ("distilbert", {"dim": 96, "hidden_dim": 172, "n_layers": 5, "n_heads": 6, "vocab_size": 331}),
    ("electra", {**BERT, "embedding_size": 40}),
    ("electra", {**BERT, "embedding_size": 96}),
    ("albert", {**BERT, "embedding_size": 40}),
    ("mpnet", {**BERT, "relative_attention_num_buckets": 9}),
    ("deberta", BERT),
    ("deberta", {**BERT, "relative_attention": True, "pos_att_type": "c2p|p2c"}),
    ("deberta", {**BERT, "relative_attention": True, "pos_att_type": "c2p", "position_biased_input": False}),
    ("deberta", {**BERT, "relative_attention": True, "pos_att_type": ["p2c"], "talking_head": True}),
    ("deberta-v2", BERT),
    ("deberta-v2", {
        **BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 13,
        "share_att_key": True, "norm_rel_ebd": "layer_norm", "position_biased_input": False,
    }),
    ("deberta-v2", {
        **BERT, "relative_attention": True, "pos_att_type": "c2p|p2c", "max_relative_positions": 21,
        "conv_kernel_size": 3, "conv_act": "gelu",
    }),
    ("albert", {**BERT, **UNTIED, "embedding_size": 40}),
    ("electra", {**BERT, **UNTIED, "embedding_size": 40}),
    ("nomic_bert", {**BERT, "head_dim": 16}),
    ("modernbert", {**BERT, "pad_token_id": 0}),
    ("modernbert", {**BERT, "pad_token_id": 0, "norm_bias": True, "attention_bias": True, "mlp_bias": True,
                    "classifier_bias": True}),
    ("eurobert", {**LLAMA, "pad_token_id": 0, "mask_token_id": 1, "attention_bias": True}),
]  # fmt: skip

# Families of which transformers has no class of its own, or has it under another model_type.
WITHOUT_CLASS = {
    "stablelm_epoch", "phi-msft", "mixformer-sequential", "RefinedWeb", "RefinedWebModel", "yi", "Yi",
    "aquila", "xverse", "internlm", "internlm2", "baichuan", "mimo", "minicpm", "orion", "exaone", "qwen",
    "chatglm",
}  # fmt: skip


def _config(kind: str, values: dict[str, Any]) -> Any:
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
    return transformers.CONFIG_MAPPING[kind](**{**special, **values})


def _written(config: Any, model: torch.nn.Module) -> dict[str, Any]:
    """What save_pretrained writes."""
    found: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return {**found, "architectures": [type(model).__name__]}


def _elements(module: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def _names(cases: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return [f"{i}-{kind}" for i, (kind, _) in enumerate(cases)]


@pytest.mark.parametrize(("kind", "values"), DECODERS, ids=_names(DECODERS))
def test_decoder_counts_as_its_modules(kind: str, values: dict[str, Any]) -> None:
    config = _config(kind, values)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    loaded = read_model(_written(config, model))
    found = loaded.spec
    assert (found.parameters(), found.parameters_without_head()) == (
        _elements(model),
        _elements(model.base_model),
    )
    assert not [note for note in loaded.notes if "class" in note]  # the family's own class is no surprise
    assert found.causal


@pytest.mark.parametrize(("kind", "values"), ENCODERS, ids=_names(ENCODERS))
def test_encoder_counts_as_its_modules(kind: str, values: dict[str, Any]) -> None:
    config = _config(kind, values)
    with torch.device("meta"):
        model = transformers.AutoModelForMaskedLM.from_config(config)
    loaded = read_model(_written(config, model))
    found = loaded.spec
    assert (found.parameters(), found.parameters_without_head()) == (
        _elements(model),
        _elements(model.base_model),
    )
    assert not [note for note in loaded.notes if "class" in note]  # the family's own class is no surprise
    assert not found.causal


# Classes beside the usual one; whether the count without head is that of `base_model`.
OTHER_HEADS: list[tuple[str, str, dict[str, Any]]] = [
    ("BertForPreTraining", "bert", BERT),
    ("BertModel", "bert", BERT),
    ("BertForSequenceClassification", "bert", {**BERT, "num_labels": 5}),
    ("BertForTokenClassification", "bert", {**BERT, "num_labels": 5}),
    ("BertForQuestionAnswering", "bert", BERT),
    ("BertForMultipleChoice", "bert", BERT),
    ("BertForNextSentencePrediction", "bert", BERT),
    ("RobertaModel", "roberta", BERT),
    ("RobertaForSequenceClassification", "roberta", {**BERT, "num_labels": 5}),
    ("RobertaForMultipleChoice", "roberta", BERT),
    ("XLMRobertaForSequenceClassification", "xlm-roberta", BERT),
    ("DistilBertModel", "distilbert", ENCODERS[10][1]),
    ("DistilBertForSequenceClassification", "distilbert", {**ENCODERS[10][1], "num_labels": 5}),
    ("ElectraForPreTraining", "electra", {**BERT, "embedding_size": 40}),
    ("ElectraModel", "electra", {**BERT, "embedding_size": 40}),
    ("ElectraForSequenceClassification", "electra", {**BERT, "embedding_size": 40, "num_labels": 5}),
    ("ElectraForTokenClassification", "electra", {**BERT, "embedding_size": 40}),
    ("AlbertForPreTraining", "albert", {**BERT, "embedding_size": 40}),
    ("AlbertModel", "albert", {**BERT, "embedding_size": 40}),
    ("AlbertForSequenceClassification", "albert", {**BERT, "embedding_size": 40}),
    ("MPNetModel", "mpnet", BERT),
    ("MPNetForSequenceClassification", "mpnet", BERT),
    ("DebertaV2Model", "deberta-v2", BERT),
    ("DebertaV2ForSequenceClassification", "deberta-v2", {**BERT, "num_labels": 5}),
    ("DebertaV2ForTokenClassification", "deberta-v2", BERT),
    ("DebertaForSequenceClassification", "deberta", BERT),
    ("ModernBertModel", "modernbert", {**BERT, "pad_token_id": 0}),
    ("ModernBertForSequenceClassification", "modernbert", {**BERT, "pad_token_id": 0, "num_labels": 5}),
    ("LlamaModel", "llama", LLAMA),
    ("LlamaForSequenceClassification", "llama", {**LLAMA, "num_labels": 5}),
    ("MistralForTokenClassification", "mistral", FREE),
    ("GPT2Model", "gpt2", GPT2),
    ("GPT2ForSequenceClassification", "gpt2", {**GPT2, "num_labels": 5}),
    ("GPT2ForTokenClassification", "gpt2", GPT2),
    ("Qwen2ForSequenceClassification", "qwen2", LLAMA),
    ("OPTForSequenceClassification", "opt", DECODERS[[case[0] for case in DECODERS].index("opt")][1]),
    ("BloomForQuestionAnswering", "bloom", {"hidden_size": 96, "n_layer": 5, "n_head": 6, "vocab_size": 331}),
]


@pytest.mark.parametrize(("name", "kind", "values"), OTHER_HEADS, ids=[case[0] for case in OTHER_HEADS])
def test_other_heads_count_as_their_modules(name: str, kind: str, values: dict[str, Any]) -> None:
    config = _config(kind, values)
    with torch.device("meta"):
        model = getattr(transformers, name)(config)
    loaded = read_model(_written(config, model))
    assert loaded.spec.parameters() == _elements(model)
    assert loaded.spec.parameters_without_head() == _elements(model.base_model)


def test_every_family_is_compared() -> None:
    compared = {kind for kind, _ in DECODERS + ENCODERS}
    assert compared | WITHOUT_CLASS == set(FAMILIES)


@pytest.mark.skipif(int(transformers.__version__.split(".")[0]) < 5, reason="the table is of transformers 5")
def test_defaults_are_those_of_the_classes() -> None:
    """Each value of our table is what the class gives when nothing is said."""
    wrong = []
    for kind, ours in family_defaults().items():
        if kind == "source":
            continue
        config = transformers.CONFIG_MAPPING[kind]()
        assert type(config).__name__ == ours["class"]
        theirs = {"tie_word_embeddings": True, **config.to_dict()}
        rope = theirs.get("rope_parameters") or {}
        theirs |= {**rope.get("full_attention", rope)}
        if "sliding_attention" in rope:
            theirs["rope_theta_window"] = rope["sliding_attention"]["rope_theta"]
        for key, value in ours.items():
            if key in ("class", "rope_scaling", "sliding_window"):  # reshaped or dropped by the class itself
                continue
            if theirs.get(key) != value:
                wrong.append(f"{kind}.{key}: {value} against {theirs.get(key)}")
    assert wrong == []
