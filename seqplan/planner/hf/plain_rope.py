"""Rotary decoders with a plain MLP and, but for Phi's kin, grouped kv heads: between GPT-2 and Llama."""

from __future__ import annotations

from seqplan.planner.hf.llama_like import biases, norms
from seqplan.planner.hf.parts import PLAIN, rope, sizes, windows
from seqplan.planner.hf.reader import ConfigReader, Fields


def base(c: ConfigReader, eps: str, kv_heads: bool = True, free_head_dim: bool = True) -> Fields:
    """LayerNorm with biases before each block, a plain MLP, rotary positions."""
    return {
        **sizes(c, free_head_dim, kv_heads),
        "ffn_hidden_size": c.size("intermediate_size"),
        **norms(c, "layernorm", eps, bias=True),
        **rope(c),
        "activation": c.choice("hidden_act", PLAIN),
    }


def phi(c: ConfigReader) -> Fields:
    """Attention and MLP side by side after one norm; every matrix is biased, the head too."""
    c.ignore("rotary_dim")
    fields = {**base(c, "layer_norm_eps"), **_qk_norm(c)}
    heads, size, hidden = fields["num_attention_heads"], fields["head_dim"], fields["hidden_size"]
    if "qk_norm" in fields and heads * size != hidden and c.ok("num_attention_heads", "head_dim"):
        c.error(f"qk_layernorm is for heads of hidden_size / num_attention_heads, not of head_dim {size}")
    return {
        **fields,
        **biases(True, True, True),
        "parallel_block": True,
        "shared_norm": True,
        "head_bias": True,
    }


def phi_first(c: ConfigReader) -> Fields:
    """Phi under the names of its first release, which gives rotary_dim instead of a share."""
    hidden, heads, rotary = c.size("hidden_size"), c.size("num_attention_heads"), c.size("rotary_dim")
    more = {
        "layer_norm_eps": c.number("layer_norm_epsilon"),
        "rope_theta": 10000.0,
        c.key("intermediate_size"): c.size("intermediate_size", 4 * hidden, f"4 x {c.key('hidden_size')}"),
        "hidden_act": c.raw("activation_function"),
        "partial_rotary_factor": min(rotary * heads / hidden, 1.0),
    }
    return phi(c.over({**c.data, **more}))


def persimmon(c: ConfigReader) -> Fields:
    fields = base(c, "layer_norm_eps", kv_heads=False, free_head_dim=False)
    return {**fields, **biases(True, True, True), **_qk_norm(c)}


def _qk_norm(c: ConfigReader) -> Fields:
    return {"qk_norm": "per_head", "qk_norm_bias": True} if c.flag("qk_layernorm") else {}


def starcoder2(c: ConfigReader) -> Fields:
    bias = c.flag("use_bias", otherwise=True)
    fields = {**base(c, "norm_epsilon"), **biases(bias, bias, bias)}
    return {**fields, **windows(c, fields["num_layers"])}


def nemotron(c: ConfigReader) -> Fields:
    """Norms with 1 + weight; squared ReLU."""
    attention = c.flag("attention_bias")
    return {
        **base(c, "norm_eps"),
        **biases(attention, attention, c.flag("mlp_bias")),
        "norm_weight_plus_one": True,
    }


def jais2(c: ConfigReader) -> Fields:
    attention = c.flag("attention_bias")
    return {**base(c, "layer_norm_eps"), **biases(attention, attention, c.flag("mlp_bias"))}
