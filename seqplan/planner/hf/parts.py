"""What many families read alike: sizes, activations, rotary positions, sliding windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seqplan.planner.hf.reader import ConfigReader, Fields, show
from seqplan.planner.hf.rope_scaling import rope_scaling

PLAIN: dict[str, str] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "quick_gelu": "gelu_quick",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
    "xielu": "xielu",
}
"""transformers' activation names -> ours; gelu_new, gelu_fast and the tanh form are one function."""

GATED: dict[str, str] = {
    "silu": "swiglu",
    "swish": "swiglu",
    "swiglu": "swiglu",
    "gelu": "geglu",
    "gelu_new": "geglu_tanh",
    "gelu_fast": "geglu_tanh",
    "gelu_pytorch_tanh": "geglu_tanh",
    "relu": "reglu",
}
"""The same where the MLP has a gate."""


def sizes(c: ConfigReader, free_head_dim: bool = True, kv_heads: bool = True) -> Fields:
    """Layers, widths, heads and vocabulary. `free_head_dim`: the family has a head_dim key of its own."""
    layers, hidden, heads = c.size("num_hidden_layers"), c.size("hidden_size"), c.size("num_attention_heads")
    kv = c.size("num_key_value_heads", heads, c.key("num_attention_heads")) if kv_heads else heads
    if c.ok("num_attention_heads", "num_key_value_heads"):
        given = f"{c.key('num_attention_heads')} {heads}"
        if kv > heads:
            c.error(f"more kv heads ({c.key('num_key_value_heads')} {kv}) than heads ({given})")
        elif heads % kv:
            c.error(f"{given} is not a multiple of {c.key('num_key_value_heads')} {kv}")
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "embedding_size": hidden,
        "num_attention_heads": heads,
        "num_kv_heads": kv,
        "head_dim": head_dim(c, hidden, heads, free_head_dim),
        "vocab_size": c.size("vocab_size"),
        "max_position_embeddings": c.size("max_position_embeddings"),
    }


def head_dim(c: ConfigReader, hidden: int, heads: int, free: bool) -> int:
    """The file's head_dim where the family has one, else hidden / heads, which must be whole."""
    given = c.optional_size("head_dim") if free else None
    if given is not None:
        return given
    if hidden % heads and c.ok("hidden_size", "num_attention_heads"):
        below = hidden // heads * heads
        near = " or ".join(str(n) for n in sorted((below, below + heads), key=lambda n: abs(n - hidden)) if n)
        c.error(
            f"{c.key('hidden_size')} {hidden} is not a multiple of {c.key('num_attention_heads')} {heads}"
            f" ({hidden / heads:.2f} each; use {near})"
        )
    return max(hidden // heads, 1)


def rope(c: ConfigReader, theta: float | None = None) -> Fields:
    """Rotary positions: theta, the share of a head that is rotated, scaling. Old and new key names.

    `theta`: the constant of families that have no key for it.
    """
    c.ignore("rope_ratio", "rope_local_base_freq")
    nested = c.mapping("rope_parameters") or {}
    full: dict[str, Any] = nested
    window: dict[str, Any] = {}
    where = "rope_parameters"
    if any(isinstance(value, dict) for value in nested.values()):  # one entry for each kind of layer
        full, window = nested.get("full_attention") or {}, nested.get("sliding_attention") or {}
        where += ".full_attention"
        rope_scaling(
            c.over({}), window, "rope_parameters.sliding_attention"
        )  # checked; windows are not stretched
    inside = c.over({**c.data, **full})
    whole = c.defaults.get("partial_rotary_factor") in (None, 1.0) and not inside.has("partial_rotary_factor")
    fraction = 1.0 if whole else inside.number("partial_rotary_factor")
    if fraction > 1:
        c.error(f"{c.key('partial_rotary_factor')} {fraction} is more than 1")
    local = window.get("rope_theta", c.data.get("rope_local_base_freq"))
    if local is None:
        local = c.defaults.get("rope_theta_window")
    return {
        "position": "rope",
        "rope_theta": inside.number("rope_theta", theta),
        "rope_theta_window": c.over({"rope_local_base_freq": local}).optional_number("rope_local_base_freq"),
        "rope_fraction": min(fraction, 1.0),
        "rope_scaling": rope_scaling(inside, full, where),
    }


def windows(c: ConfigReader, layers: int, is_sliding: Callable[[int], bool] | None = None) -> Fields:
    """sliding_window and the layers that have it: by layer_types, else by the family's rule, else all."""
    window = c.optional_size("sliding_window")
    kinds = c.words("layer_types")
    if kinds is not None and c.ok("num_hidden_layers"):
        known = ("sliding_attention", "full_attention")
        strange = [kind for kind in kinds if kind not in known]
        if strange:
            c.error(f"layer_types has {show(strange[0])}; known are {', '.join(known)}")
        if len(kinds) != layers:
            c.error(f"layer_types has {len(kinds)} entries for {c.key('num_hidden_layers')} {layers}")
        chosen = tuple(i for i, kind in enumerate(kinds[:layers]) if kind == "sliding_attention")
    else:
        chosen = tuple(i for i in range(layers) if is_sliding is None or is_sliding(i))
    if window is None or not chosen:
        return {}
    return {"sliding_window": window, "window_layers": None if len(chosen) == layers else chosen}
