"""The families: model_type -> which reader, under which key names, with which head.

To add one: a reader beside its kin, a line here, its class's defaults in defaults.json (where transformers
has the class), and a case in tests/planner/test_hf_families.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from seqplan.planner.hf import encoders, gpt_like, llama_like, llama_variants, plain_rope, remote_code
from seqplan.planner.hf.heads import PLAIN_STYLE, HeadStyle
from seqplan.planner.hf.reader import ConfigReader, Fields

Names = Mapping[str, tuple[str, ...]]
"""Our name for a value -> the keys that a family reads it from, its own first."""

GPT2: Names = {
    "hidden_size": ("n_embd", "hidden_size"),
    "num_hidden_layers": ("n_layer", "num_hidden_layers"),
    "num_attention_heads": ("n_head", "num_attention_heads"),
    "max_position_embeddings": ("n_positions", "max_position_embeddings"),
    "intermediate_size": ("n_inner",),
}
BLOOM: Names = {
    "hidden_size": ("hidden_size", "n_embed"),
    "num_hidden_layers": ("n_layer", "num_hidden_layers"),
    "num_attention_heads": ("n_head", "num_attention_heads"),
}
FALCON: Names = {
    "num_hidden_layers": ("num_hidden_layers", "n_layer"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "num_kv_heads": ("num_kv_heads", "n_head_kv"),
    "intermediate_size": ("ffn_hidden_size",),
}
GPT_NEO: Names = {
    "num_hidden_layers": ("num_layers", "num_hidden_layers"),
    "num_attention_heads": ("num_heads", "num_attention_heads"),
}
NEOX: Names = {
    "partial_rotary_factor": ("rotary_pct", "partial_rotary_factor"),
    "rope_theta": ("rotary_emb_base", "rope_theta"),
}
MPT: Names = {
    "hidden_size": ("d_model", "hidden_size"),
    "num_hidden_layers": ("n_layers", "num_hidden_layers"),
    "num_attention_heads": ("n_heads", "num_attention_heads"),
    "max_position_embeddings": ("max_seq_len",),
}
XGLM: Names = {
    "hidden_size": ("d_model", "hidden_size"),
    "num_hidden_layers": ("num_layers", "num_hidden_layers"),
    "num_attention_heads": ("attention_heads", "num_attention_heads"),
    "intermediate_size": ("ffn_dim",),
}
DISTILBERT: Names = {
    "hidden_size": ("dim", "hidden_size"),
    "num_hidden_layers": ("n_layers", "num_hidden_layers"),
    "num_attention_heads": ("n_heads", "num_attention_heads"),
    "intermediate_size": ("hidden_dim",),
}
NOMIC: Names = {
    "hidden_size": ("hidden_size", "n_embd"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "intermediate_size": ("intermediate_size", "n_inner"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions"),
    "hidden_act": ("hidden_act", "activation_function"),
    "layer_norm_eps": ("layer_norm_eps", "layer_norm_epsilon"),
    "rope_theta": ("rope_theta", "rotary_emb_base"),
    "partial_rotary_factor": ("partial_rotary_factor", "rotary_emb_fraction"),
}
GEMMA2: Names = {"hidden_act": ("hidden_activation",)}
STABLELM: Names = {
    "partial_rotary_factor": ("partial_rotary_factor", "rope_pct"),
    "layer_norm_eps": ("layer_norm_eps", "norm_eps"),
}
CHATGLM: Names = {
    "num_hidden_layers": ("num_layers", "num_hidden_layers"),
    "intermediate_size": ("ffn_hidden_size",),
    "vocab_size": ("padded_vocab_size", "vocab_size"),
    "max_position_embeddings": ("seq_length", "max_position_embeddings"),
}
QWEN: Names = {
    "hidden_size": ("hidden_size", "n_embd"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions"),
    "rope_theta": ("rope_theta", "rotary_emb_base"),
    "partial_rotary_factor": ("rotary_pct", "partial_rotary_factor"),
}
EXAONE: Names = {
    "num_hidden_layers": ("num_layers", "num_hidden_layers"),
    "rms_norm_eps": ("layer_norm_epsilon",),
    "hidden_act": ("activation_function",),
}


@dataclass(frozen=True)
class Family:
    """How one model_type is read. `defaults`: the model_type whose defaults apply, if not its own."""

    read: Callable[[ConfigReader], Fields]
    names: Names = field(default_factory=dict)
    head: HeadStyle = PLAIN_STYLE
    defaults: str | None = None


_POOLED = HeadStyle(pooler=True, own_dense=False)
_ROBERTA = HeadStyle(pooler=True)
_LENGTH: Names = {"max_position_embeddings": ("max_position_embeddings", "model_max_length")}

FAMILIES: dict[str, Family] = {
    "llama": Family(llama_like.llama),
    "mistral": Family(llama_like.mistral),
    "ministral": Family(llama_like.mistral),
    "ministral3": Family(llama_like.mistral),
    "qwen2": Family(llama_like.qwen2),
    "qwen3": Family(llama_like.qwen3),
    "gemma": Family(llama_like.gemma),
    "gemma2": Family(llama_like.gemma2, GEMMA2),
    "gemma3_text": Family(llama_like.gemma3, GEMMA2),
    "vaultgemma": Family(llama_like.vaultgemma, GEMMA2),
    "phi3": Family(llama_like.phi3),
    "olmo": Family(llama_like.olmo),
    "olmo2": Family(llama_like.olmo2),
    "olmo3": Family(llama_like.olmo3),
    "granite": Family(llama_like.granite),
    "cohere": Family(llama_like.cohere),
    "cohere2": Family(llama_like.cohere2),
    "stablelm": Family(llama_like.stablelm, STABLELM),
    "stablelm_epoch": Family(llama_like.stablelm, STABLELM, defaults="stablelm"),
    "glm": Family(llama_like.glm),
    "glm4": Family(llama_like.glm4),
    "exaone4": Family(llama_variants.exaone4),
    "smollm3": Family(llama_variants.smollm3),
    "seed_oss": Family(llama_variants.seed_oss),
    "helium": Family(llama_variants.helium),
    "ernie4_5": Family(llama_variants.ernie4_5),
    "hunyuan_v1_dense": Family(llama_variants.hunyuan),
    "arcee": Family(llama_variants.arcee),
    "apertus": Family(llama_variants.apertus),
    "cwm": Family(llama_variants.cwm),
    "iquestcoder": Family(llama_like.llama),
    "internlm3": Family(
        llama_like.llama, {"attention_bias": ("qkv_bias", "attention_bias"), "mlp_bias": ("bias",)}
    ),
    "phi": Family(plain_rope.phi),
    "phi-msft": Family(plain_rope.phi_first, GPT2, defaults="phi"),
    "mixformer-sequential": Family(plain_rope.phi_first, GPT2, defaults="phi"),
    "persimmon": Family(plain_rope.persimmon),
    "starcoder2": Family(plain_rope.starcoder2),
    "nemotron": Family(plain_rope.nemotron),
    "jais2": Family(plain_rope.jais2),
    "gpt2": Family(gpt_like.gpt2, GPT2),
    "gpt-sw3": Family(gpt_like.gpt2, GPT2, defaults="gpt2"),
    "openai-gpt": Family(gpt_like.openai_gpt, GPT2),
    "gpt_bigcode": Family(gpt_like.gpt_bigcode, GPT2),
    "gpt_neo": Family(gpt_like.gpt_neo, GPT_NEO),
    "gptj": Family(gpt_like.gptj, GPT2),
    "codegen": Family(gpt_like.gptj, GPT2),
    "gpt_neox": Family(gpt_like.gpt_neox, NEOX),
    "gpt_neox_japanese": Family(gpt_like.gpt_neox_japanese, NEOX),
    "opt": Family(gpt_like.opt, {"intermediate_size": ("ffn_dim",)}),
    "bloom": Family(gpt_like.bloom, BLOOM),
    "falcon": Family(gpt_like.falcon, FALCON),
    "RefinedWeb": Family(gpt_like.falcon, FALCON, defaults="falcon"),
    "RefinedWebModel": Family(gpt_like.falcon, FALCON, defaults="falcon"),
    "mpt": Family(gpt_like.mpt, MPT),
    "xglm": Family(gpt_like.xglm, XGLM),
    "biogpt": Family(gpt_like.biogpt),
    "yi": Family(remote_code.yi),
    "Yi": Family(remote_code.yi),
    "aquila": Family(remote_code.yi),
    "xverse": Family(remote_code.yi),
    "internlm": Family(remote_code.internlm),
    "internlm2": Family(remote_code.internlm2),
    "baichuan": Family(remote_code.baichuan, _LENGTH),
    "mimo": Family(remote_code.mimo),
    "minicpm": Family(remote_code.minicpm),
    "orion": Family(remote_code.orion),
    "exaone": Family(remote_code.exaone, EXAONE),
    "qwen": Family(remote_code.qwen, QWEN),
    "chatglm": Family(remote_code.chatglm, CHATGLM, HeadStyle(always=True)),
    "bert": Family(encoders.bert, head=_POOLED),
    "roberta": Family(encoders.roberta, head=_ROBERTA),
    "xlm-roberta": Family(encoders.roberta, head=_ROBERTA),
    "camembert": Family(encoders.roberta, head=_ROBERTA),
    "data2vec-text": Family(encoders.roberta, head=_ROBERTA),
    "roberta-prelayernorm": Family(encoders.roberta_prenorm, head=_ROBERTA),
    "xlm-roberta-xl": Family(encoders.roberta_xl, head=_ROBERTA),
    "megatron-bert": Family(encoders.megatron_bert, head=_POOLED),
    "ernie": Family(encoders.ernie, head=_POOLED),
    "distilbert": Family(encoders.distilbert, DISTILBERT, HeadStyle(second_bias=False)),
    "electra": Family(encoders.electra, head=HeadStyle(discriminator=True, second_bias=False)),
    "albert": Family(encoders.albert, head=_POOLED),
    "mpnet": Family(encoders.mpnet, head=_ROBERTA),
    "deberta": Family(encoders.deberta),
    "deberta-v2": Family(encoders.deberta_v2),
    "nomic_bert": Family(encoders.nomic_bert, NOMIC, HeadStyle(pooler=False, own_dense=False)),
    "modernbert": Family(encoders.modernbert, head=HeadStyle(second_bias=False)),
    "eurobert": Family(llama_variants.eurobert, head=HeadStyle(plain=True)),
}


CLASS_PREFIXES: dict[str, str] = {
    "Bert": "bert",
    "Roberta": "roberta",
    "GPT2": "gpt2",
    "GPTNeo": "gpt_neo",
    "GPTNeoX": "gpt_neox",
    "GPTJ": "gptj",
    "OPT": "opt",
    "Bloom": "bloom",
    "Llama": "llama",
    "LLaMA": "llama",
    "Mistral": "mistral",
    "Qwen2": "qwen2",
    "Qwen3": "qwen3",
    "DistilBert": "distilbert",
    "Albert": "albert",
    "Electra": "electra",
    "Gemma": "gemma",
    "Gemma2": "gemma2",
    "Phi": "phi",
    "Phi3": "phi3",
    "Falcon": "falcon",
    "MPT": "mpt",
}
"""Starts of class names -> model_type, for old files that name only their class."""
