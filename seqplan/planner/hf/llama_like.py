"""Families that descend from Llama: a gated MLP, RMSNorm (mostly) before each block, rotary positions.

Each reader says only what differs. What a family does was read from its modelling code in transformers
(5.24), or, where the code ships with the weights, from that; the tests compare with transformers' modules.
"""

from __future__ import annotations

from typing import Any

from seqplan.planner.hf.parts import GATED, rope, sizes, windows
from seqplan.planner.hf.reader import ConfigReader, Fields


def norms(c: ConfigReader, kind: str, eps: str, bias: bool = False, position: str = "pre") -> Fields:
    """One kind of norm through the whole model, and a final one."""
    return {
        "norm": kind,
        "norm_bias": bias,
        "norm_position": position,
        "norm_eps": c.number(eps),
        "embedding_norm": False,
        "final_norm": True,
    }


def biases(qkv: bool, output: bool, mlp: bool) -> Fields:
    """Which matrices have a bias."""
    return {"qkv_bias": qkv, "attention_output_bias": output, "mlp_bias": mlp}


def base(c: ConfigReader, **over: Any) -> Fields:
    """Llama without any option."""
    return {
        **sizes(c),
        "ffn_hidden_size": c.size("intermediate_size"),
        **norms(c, "rmsnorm", "rms_norm_eps"),
        **rope(c),
        "activation": c.choice("hidden_act", GATED),
        **biases(False, False, False),
        **over,
    }


def llama(c: ConfigReader) -> Fields:
    """attention_bias gives all four projections a bias."""
    attention = c.flag("attention_bias")
    return base(c, **biases(attention, attention, c.flag("mlp_bias")))


def mistral(c: ConfigReader) -> Fields:
    fields = base(c)
    return {**fields, **windows(c, fields["num_layers"])}


def qwen2(c: ConfigReader, **over: Any) -> Fields:
    """Biased q, k and v; the layers from max_window_layers on have the window, where it is used at all."""
    fields = base(c, **{**biases(True, False, False), **over})
    if not c.flag("use_sliding_window"):
        c.ignore("sliding_window", "max_window_layers", "layer_types")
        return fields
    first = c.size("max_window_layers", 1)
    return {**fields, **windows(c, fields["num_layers"], lambda layer: layer >= first)}


def qwen3(c: ConfigReader) -> Fields:
    attention = c.flag("attention_bias")
    return qwen2(c, qk_norm="per_head", **biases(attention, attention, False))


def gemma(c: ConfigReader, **over: Any) -> Fields:
    """Embeddings times sqrt(hidden), norms with 1 + weight, a tanh-GELU gate."""
    attention = c.flag("attention_bias")
    if "hidden_act" not in c.names:  # the first Gemma
        given = c.raw("hidden_activation") or c.raw("hidden_act")
        # Its release wrote gelu under the old key and meant the tanh form, as its code says.
        legacy = given == "gelu" and not c.has("hidden_activation")
        c = c.over(
            {**c.data, "hidden_act": "gelu_pytorch_tanh" if legacy else given or c.data.get("hidden_act")}
        )
    c.ignore("hidden_act", "hidden_activation")
    fields = base(c, **biases(attention, attention, False))
    return {**fields, "embedding_scale": fields["hidden_size"] ** 0.5, "norm_weight_plus_one": True, **over}


def gemma2(c: ConfigReader, every: int = 2, **over: Any) -> Fields:
    """Norms on both sides of a block, capped scores and logits; each `every`-th layer sees everything."""
    scale = c.number("query_pre_attn_scalar")
    fields = gemma(
        c,
        **{
            "norm_position": "sandwich",
            "attention_scale": scale**-0.5,
            "attention_softcap": c.optional_number("attn_logit_softcapping"),
            "logit_softcap": c.optional_number("final_logit_softcapping"),
            **over,
        },
    )
    if c.flag("use_bidirectional_attention"):
        fields["architecture"] = "encoder"
    return {**fields, **windows(c, fields["num_layers"], lambda layer: (layer + 1) % every != 0)}


def gemma3(c: ConfigReader) -> Fields:
    c.ignore("_sliding_window_pattern", "sliding_window_pattern")
    every = c.size(
        "sliding_window_pattern" if c.has("sliding_window_pattern") else "_sliding_window_pattern", 6
    )
    return gemma2(c, every, qk_norm="per_head")


def vaultgemma(c: ConfigReader) -> Fields:
    return gemma2(c, norm_position="pre")


def phi3(c: ConfigReader) -> Fields:
    fields = base(c)
    c.ignore("original_max_position_embeddings", "attention_bias")
    scaling = fields["rope_scaling"]
    if scaling is not None and c.has("original_max_position_embeddings"):
        scaling["original_max_position_embeddings"] = c.size("original_max_position_embeddings")
    return {**fields, **windows(c, fields["num_layers"])}


def olmo(c: ConfigReader) -> Fields:
    """A LayerNorm without weights, eps 1e-5 fixed in the code; clip_qkv clamps q, k and v."""
    attention = c.flag("attention_bias")
    return {
        **sizes(c),
        "ffn_hidden_size": c.size("intermediate_size"),
        **norms(c.over({"layer_norm_eps": 1e-5}), "layernorm_without_weights", "layer_norm_eps"),
        **rope(c),
        "activation": c.choice("hidden_act", GATED),
        **biases(attention, attention, False),
        "qkv_clip": c.optional_number("clip_qkv"),
    }


def olmo2(c: ConfigReader) -> Fields:
    """The norms stand on the blocks' outputs; q and k are normed over all heads at once."""
    attention = c.flag("attention_bias")
    return base(c, norm_position="output", qk_norm="full", **biases(attention, attention, False))


def olmo3(c: ConfigReader) -> Fields:
    fields = olmo2(c)
    return {**fields, **windows(c, fields["num_layers"], lambda layer: (layer + 1) % 4 != 0)}


def granite(c: ConfigReader) -> Fields:
    return {
        **llama(c),
        "embedding_scale": c.number("embedding_multiplier", 1.0),
        "residual_scale": c.number("residual_multiplier", 1.0),
        "attention_scale": c.number("attention_multiplier", 1.0),
        "logit_scale": 1.0 / c.number("logits_scaling", 1.0),
    }


def cohere(c: ConfigReader) -> Fields:
    """One LayerNorm without bias feeds attention and MLP side by side."""
    attention = c.flag("attention_bias")
    return {
        **sizes(c),
        "ffn_hidden_size": c.size("intermediate_size"),
        **norms(c, "layernorm", "layer_norm_eps"),
        **rope(c),
        "rope_interleaved": True,
        "activation": c.choice("hidden_act", GATED),
        **biases(attention, attention, False),
        "parallel_block": True,
        "shared_norm": True,
        "qk_norm": "each_head" if c.flag("use_qk_norm") else "none",
        "logit_scale": c.number("logit_scale", 1.0),
    }


def cohere2(c: ConfigReader) -> Fields:
    """Three of four layers have a window; the others see everything and have no positions."""
    c.ignore("_sliding_window_pattern", "sliding_window_pattern")
    every = c.size(
        "sliding_window_pattern" if c.has("sliding_window_pattern") else "_sliding_window_pattern", 4
    )
    fields = cohere(c)
    layers = fields["num_layers"]
    fields |= windows(c, layers, lambda layer: (layer + 1) % every != 0)
    if "sliding_window" in fields:
        windowed = fields["window_layers"]
        fields["rope_skip_layers"] = () if windowed is None else tuple(sorted({*range(layers)} - {*windowed}))
    return fields


def stablelm(c: ConfigReader) -> Fields:
    parallel = c.flag("use_parallel_residual")
    return {
        **sizes(c, free_head_dim=False),
        "ffn_hidden_size": c.size("intermediate_size"),
        **norms(c, "layernorm", "layer_norm_eps", bias=True),
        **rope(c),
        "activation": c.choice("hidden_act", GATED),
        **biases(c.flag("use_qkv_bias"), False, False),
        "parallel_block": parallel,
        "shared_norm": parallel,
        "qk_norm": "each_head" if c.flag("qk_layernorm") else "none",
    }


def glm(c: ConfigReader) -> Fields:
    return base(c, rope_interleaved=True, **biases(c.flag("attention_bias"), False, False))


def glm4(c: ConfigReader) -> Fields:
    return {**glm(c), "norm_position": "sandwich"}
