"""Decoders whose code ships with their weights, so that transformers has no class and no defaults for them.

Nothing but the file says their sizes: every key is required. What each does was read from the modelling file
that its makers publish beside the weights.
"""

from __future__ import annotations

from seqplan.planner.hf.llama_like import base, biases, norms, qwen2
from seqplan.planner.hf.parts import GATED, head_dim, rope, sizes
from seqplan.planner.hf.reader import ConfigReader, Fields

LLAMA_THETA = 10000.0
"""The base of RoPE where the code has a constant (RoFormer, arXiv 2104.09864, section 3.2.2)."""


def _llama_sizes(c: ConfigReader, kv_heads: bool = True) -> Fields:
    return {
        **sizes(c, free_head_dim=False, kv_heads=kv_heads),
        "ffn_hidden_size": c.size("intermediate_size"),
        **norms(c, "rmsnorm", "rms_norm_eps"),
        **rope(c, LLAMA_THETA),
        "activation": c.choice("hidden_act", GATED),
    }


def yi(c: ConfigReader) -> Fields:
    """Yi's first release: Llama under another name."""
    return {**_llama_sizes(c), **biases(False, False, False)}


def internlm(c: ConfigReader, kv_heads: bool = False) -> Fields:
    """InternLM 1: `bias` is that of the four attention projections."""
    bias = c.flag("bias", otherwise=True)
    return {**_llama_sizes(c, kv_heads), **biases(bias, bias, False)}


def internlm2(c: ConfigReader) -> Fields:
    """InternLM 2: the same with q, k and v in one matrix; kv heads are grouped."""
    return internlm(c, kv_heads=True)


def baichuan(c: ConfigReader) -> Fields:
    """Baichuan 1 and 2: no kv heads, no biases. The 13B, told by its 40 layers, has ALiBi instead of RoPE."""
    fields = {**_llama_sizes(c, kv_heads=False), **biases(False, False, False)}
    if fields["num_layers"] == 40 and fields["hidden_size"] == 5120:
        c.notes.append(
            "Baichuan-13B (40 layers of 5120): ALiBi instead of rotary positions, as in its own code"
        )
        for name in ("rope_theta", "rope_theta_window", "rope_fraction", "rope_scaling"):
            del fields[name]
        fields["position"] = "alibi"
    return fields


def mimo(c: ConfigReader) -> Fields:
    """MiMo: Qwen2 with a head_dim of its own; attention_bias is that of q, k and v."""
    return qwen2(c, **biases(c.flag("attention_bias", otherwise=True), False, False))


def minicpm(c: ConfigReader) -> Fields:
    """MiniCPM 1: scaled embeddings (scale_emb), residuals (scale_depth) and logits (dim_model_base)."""
    fields = {**_llama_sizes(c), **biases(False, False, False)}
    layers, hidden = fields["num_layers"], fields["hidden_size"]
    return {
        **fields,
        "embedding_scale": c.number("scale_emb", 1.0),
        "residual_scale": c.number("scale_depth", 1.0) / layers**0.5 if c.has("scale_depth") else 1.0,
        "logit_scale": c.number("dim_model_base", hidden) / hidden,
    }


def orion(c: ConfigReader) -> Fields:
    """Orion: Llama with LayerNorm (weights and biases) of eps rms_norm_eps."""
    return {
        **_llama_sizes(c),
        **norms(c, "layernorm", "rms_norm_eps", bias=True),
        **biases(False, False, False),
    }


def exaone(c: ConfigReader) -> Fields:
    """EXAONE 3: Llama under GPT-2-like names."""
    return {**base(c), "ffn_hidden_size": c.size("intermediate_size")}


def qwen(c: ConfigReader) -> Fields:
    """Qwen 1: ffn_hidden_size holds both halves of the MLP; q, k, v are biased, no_bias covers the rest."""
    both = c.size("intermediate_size")
    if both % 2 and c.ok("intermediate_size"):
        c.error(f"{c.key('intermediate_size')} {both} is not even, but holds both halves of a gated MLP")
    c.notes.append(
        f"{c.key('intermediate_size')} {both} is both halves of the gated MLP: each is {both // 2} wide"
    )
    others = not c.flag("no_bias", otherwise=True)
    c.ignore("seq_length")  # the length that it was trained at; the rope table is as long as it must be
    fields = {
        **sizes(c, free_head_dim=False, kv_heads=False),
        "head_dim": c.size("kv_channels"),
        "ffn_hidden_size": max(both // 2, 1),
        **norms(c, "rmsnorm", "layer_norm_epsilon"),
        **rope(c, LLAMA_THETA),
        "activation": "swiglu",
        **biases(True, others, others),
    }
    inert = ("use_dynamic_ntk", "use_logn_attn")
    if c.flag(inert[0]) or c.flag(inert[1]):
        c.notes.append("use_dynamic_ntk and use_logn_attn act beyond the training length only; left out")
    return fields


def chatglm(c: ConfigReader) -> Fields:
    """ChatGLM 2, 3 and GLM-4-9B: grouped kv heads under their own names, half of each head rotated."""
    for key in ("position_encoding_2d", "inner_hidden_size"):
        if c.has(key):
            c.error(f"{key} is of the first ChatGLM, whose prefix attention and 2D positions are not covered")
    heads, hidden = c.size("num_attention_heads"), c.size("hidden_size")
    kv = c.size("multi_query_group_num") if c.flag("multi_query_attention") else heads
    c.ignore("multi_query_group_num")
    if not c.flag("post_layer_norm", otherwise=True):
        c.error("post_layer_norm false (no final norm) is not covered")
    linear = c.flag("add_bias_linear")
    common = c.over(
        {**c.data, "num_key_value_heads": kv, "rope_theta": LLAMA_THETA * c.number("rope_ratio", 1.0)}
    )
    rmsnorm = c.flag("rmsnorm", otherwise=True)
    return {
        **sizes(common, free_head_dim=False),
        "head_dim": c.size("kv_channels") if c.has("kv_channels") else head_dim(c, hidden, heads, free=False),
        "ffn_hidden_size": c.size("intermediate_size"),
        **norms(c, "rmsnorm" if rmsnorm else "layernorm", "layernorm_epsilon", bias=not rmsnorm),
        **rope(common),
        "rope_fraction": 0.5,
        "rope_interleaved": True,
        "norm_on_residual": c.flag("apply_residual_connection_post_layernorm"),
        "activation": "swiglu",
        **biases(linear or c.flag("add_qkv_bias"), linear, linear),
    }
