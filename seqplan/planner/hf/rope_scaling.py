"""How rotary positions are stretched: the kinds that transformers knows, each with the numbers it needs.

Counts do not depend on it, but a plan that trains with another stretch than the file's trains another model;
so an unknown kind or a number that is none is an error, not a guess.
"""

from __future__ import annotations

import math
import re
from typing import Any

from seqplan.planner.hf.reader import ConfigReader, show
from seqplan.planner.reading.read_json import kind_of

KINDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "longrope": (),
    "su": (),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "mrope": (),
    "proportional": (),
}
"""Kind -> the keys it cannot do without. Source: modeling_rope_utils.py of transformers 5.24; su is the
name of longrope in Phi-3's first release, mrope that of plain rope with three counters in Qwen2-VL."""
_POSITIVE = re.compile(r"(\w+_)?factor|original_max_position_embeddings")
_NOT_NEGATIVE = re.compile(r"beta_(fast|slow)|mscale(_all_dim)?")


def rope_scaling(c: ConfigReader, nested: dict[str, Any], where: str) -> dict[str, Any] | None:
    """The scaling as the file writes it, with its kind under rope_type; None where rope is plain.

    `nested`: the newer form, an object (named `where`) that also holds theta.
    """
    found = c.mapping("rope_scaling")
    name = c.key("rope_scaling")
    if found is None and nested:
        found = {k: v for k, v in nested.items() if k not in ("rope_theta", "partial_rotary_factor")}
        name = where
    if not found:
        return None
    kinds = [key for key in ("rope_type", "type") if found.get(key) is not None]
    for key in kinds:
        if not isinstance(found[key], str):
            c.error(f"{name}.{key} is {show(found[key])}, {kind_of(found[key])}, not a word")
        elif found[key] not in KINDS:
            c.error(f"{name}.{key} is {show(found[key])}; known are {', '.join(KINDS)}")
    kind = found[kinds[0]] if kinds else "default"
    if not kinds and "factor" in found:
        c.notes.append(f"{name} has no rope_type, so its factor {show(found['factor'])} has no effect")
    _check_numbers(c, name, found)
    for key in KINDS.get(kind, ()) if isinstance(kind, str) else ():
        if found.get(key) is None:
            c.error(f"{name}.{key} is missing: {kind} scaling needs it")
    if kind in ("default", "mrope"):
        return None
    return {"rope_type": kind, **{k: v for k, v in found.items() if k not in ("type", "rope_type")}}


def _check_numbers(c: ConfigReader, name: str, found: dict[str, Any]) -> None:
    for key, value in found.items():
        positive = bool(_POSITIVE.fullmatch(key))
        if value is None or not (positive or _NOT_NEGATIVE.fullmatch(key)):
            continue
        several = isinstance(value, list) and bool(value) and key in ("long_factor", "short_factor")
        wrong = next(
            (text for item in (value if several else [value]) if (text := _wrong(item, positive))), ""
        )
        if wrong:
            c.error(f"{name}.{key} {'has' if several else 'is'} {wrong}")
    low, high = found.get("low_freq_factor"), found.get("high_freq_factor")
    if low is not None and not _wrong(low, True) and not _wrong(high, True) and high <= low:
        c.error(f"{name}.high_freq_factor {show(high)} must be more than low_freq_factor {show(low)}")


def _wrong(value: Any, positive: bool) -> str:
    """What is wrong with a number, or nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{show(value)}, {kind_of(value)}, not a number"
    if not math.isfinite(value):
        return "not a finite number"
    if value < 0 or (positive and value == 0):
        return f"{show(value)} but must {'be positive' if positive else 'not be negative'}"
    return ""
