"""Later families on Llama's plan, each with one or two options of its own; read like llama_like.py."""

from __future__ import annotations

from seqplan.planner.hf.llama_like import base, biases, llama
from seqplan.planner.hf.parts import PLAIN, windows
from seqplan.planner.hf.reader import ConfigReader, Fields


def exaone4(c: ConfigReader) -> Fields:
    """Norms on the blocks' outputs; with a window, the layers that see everything have no positions."""
    fields = base(c, norm_position="output", qk_norm="per_head")
    layers = fields["num_layers"]
    pattern = c.raw("sliding_window_pattern")
    if isinstance(pattern, str):  # "LLLG": L is a window, G sees everything
        every: int | None = len(pattern)
    else:
        every = c.optional_size("sliding_window_pattern")
    fields |= windows(c, layers, lambda layer: every is not None and (layer + 1) % every != 0)
    windowed = fields.get("window_layers")
    if windowed is not None:
        fields["rope_skip_layers"] = tuple(sorted({*range(layers)} - {*windowed}))
    return fields


def smollm3(c: ConfigReader) -> Fields:
    """Every fourth layer has no positions; no_rope_layers holds 1 where a layer HAS them."""
    fields = llama(c)
    layers = fields["num_layers"]
    marks = c.raw("no_rope_layers")
    every = c.size("no_rope_layer_interval", 4)
    if marks is None:
        marks = [int((layer + 1) % every != 0) for layer in range(layers)]
    if not isinstance(marks, list) or (c.ok("num_hidden_layers") and len(marks) != layers):
        c.error(f"no_rope_layers must be a list of {layers} marks")
        marks = []
    fields["rope_skip_layers"] = tuple(i for i, mark in enumerate(marks) if not mark)
    if not c.flag("use_sliding_window"):
        c.ignore("sliding_window", "layer_types")
        return fields
    return {**fields, **windows(c, layers, lambda layer: layer in fields["rope_skip_layers"])}


def seed_oss(c: ConfigReader) -> Fields:
    return base(c, **biases(c.flag("attention_bias"), c.flag("attention_out_bias"), c.flag("mlp_bias")))


def helium(c: ConfigReader) -> Fields:
    """The attention's output matrix is hidden x hidden, whatever head_dim says."""
    fields = base(c, rope_interleaved=True, **biases(c.flag("attention_bias"), False, c.flag("mlp_bias")))
    heads, size, hidden = fields["num_attention_heads"], fields["head_dim"], fields["hidden_size"]
    if heads * size != hidden and c.ok("num_attention_heads", "head_dim", "hidden_size"):
        c.error(
            f"num_attention_heads {heads} x head_dim {size} is {heads * size}, but helium's attention output"
            f" takes hidden_size {hidden}: head_dim must be hidden_size / num_attention_heads"
        )
    return fields


def ernie4_5(c: ConfigReader) -> Fields:
    bias = c.flag("use_bias")
    return base(c, rope_interleaved=True, **biases(bias, bias, bias))


def hunyuan(c: ConfigReader) -> Fields:
    attention = c.flag("attention_bias")
    return base(c, qk_norm="per_head", **biases(attention, attention, False))


def arcee(c: ConfigReader) -> Fields:
    """Llama with a plain MLP of squared ReLU."""
    attention = c.flag("attention_bias")
    plain = c.choice("hidden_act", PLAIN)
    return {
        **base(
            c.over({**c.data, c.key("hidden_act"): "silu"}),
            **biases(attention, attention, c.flag("mlp_bias")),
        ),
        "activation": plain,
    }


def apertus(c: ConfigReader) -> Fields:
    """A plain MLP of xIELU, whose two parameters are trained, and normed q and k."""
    attention = c.flag("attention_bias")
    fields = {**arcee(c), "qk_norm": "per_head", **biases(attention, attention, False)}
    if fields["activation"] == "xielu":
        fields["extra_tensors"] = [
            {"name": f"mlp.activation.{name}", "place": "layer", "shape": (1,), "tp_split": "replicated"}
            for name in ("alpha_p", "alpha_n")
        ]
    return fields


def cwm(c: ConfigReader) -> Fields:
    fields = base(c)
    return {**fields, **windows(c, fields["num_layers"], lambda layer: layer % 4 != 0)}


def eurobert(c: ConfigReader) -> Fields:
    attention = c.flag("attention_bias")
    return {**base(c, **biases(attention, attention, c.flag("mlp_bias"))), "architecture": "encoder"}
