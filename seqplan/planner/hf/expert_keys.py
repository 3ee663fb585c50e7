"""Mixtures of experts, told by any key that speaks of experts.

A list of the keys in use would miss the next one, and a mixture counted as dense is many times too small. So
every key with moe, expert or router in its name counts unless the file gives a count of experts of 0 or 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from seqplan.planner.hf.meaning import at_most_one, says_nothing
from seqplan.planner.hf.reader import show

_SPEAKS = re.compile(r"moe|expert|(^|_)router(_|$)", re.IGNORECASE)
_COUNT = re.compile(
    r"(?!.*(shared|top|_per_|select|activ|used|chosen|parallel))"
    r"((\w+_)?n?experts?|experts?_(num|count)|moe_(num|count))",
    re.IGNORECASE,
)
"""Keys that count experts: not those of one token, nor the shared ones."""
_SWITCH = re.compile(r"(use|using|enable|is|has|with)_(\w+_)?moe(_(block|layers?|mlp))?", re.IGNORECASE)
_NESTED = re.compile(r"ffn|mlp|feed_?forward", re.IGNORECASE)
"""Objects that may hold such keys without being named after experts themselves."""
_KIND = re.compile(r"(ffn|mlp|feed_?forward)_(layer_)?types?", re.IGNORECASE)
_KIND_OF_EXPERTS = re.compile(r"moe|expert|sparse|mixture", re.IGNORECASE)
_PLACES = re.compile(r"_(layers|layer_ids|layer_indices|layer_idx|ids|indices|idxs?)$", re.IGNORECASE)


class _Entry(NamedTuple):
    path: str
    key: str
    value: Any


def experts(data: Mapping[str, Any]) -> list[str]:
    """The keys, with their values, that make this a mixture of experts; counts first."""
    entries = list(_entries(data))
    kinds = [
        f"{key} has {show(kind)}"
        for key, value in data.items()
        if _KIND.fullmatch(key)
        for kind in (value if isinstance(value, list) else [value])
        if isinstance(kind, str) and _KIND_OF_EXPERTS.search(kind)
    ]
    counts = [entry for entry in entries if _is_count(entry)]
    switches = [entry for entry in entries if entry.value is True and _SWITCH.fullmatch(entry.key)]
    if _all_at_most_one(counts) or (not counts and any(_is_off(entry) for entry in entries)):
        return [*map(_shown, switches), *kinds[:1]]
    found = [entry for entry in counts if not at_most_one(entry.value)]
    found += [entry for entry in entries if entry not in counts and _means_experts(entry)]
    return [*map(_shown, found), *kinds[:1]]


def says_no_experts(data: Mapping[str, Any]) -> bool:
    """A class that can have experts, told to have none by a count of 0 or 1; null may mean its default."""
    entries = list(_entries(data))
    counts = [entry for entry in entries if _is_count(entry)]
    switched = any(entry.value is True and _SWITCH.fullmatch(entry.key) for entry in entries)
    return not switched and _all_at_most_one(counts) and any(entry.value is not None for entry in counts)


def _entries(data: Mapping[str, Any], prefix: str = "", inside: bool = False) -> Iterator[_Entry]:
    """Every key that speaks of experts, also inside objects; in an object named after them, every key."""
    for key, value in data.items():
        if not isinstance(key, str):
            continue
        mine = inside or bool(_SPEAKS.search(key))
        if isinstance(value, dict):
            if mine or _NESTED.search(key):
                yield from _entries(value, f"{prefix}{key}.", mine)
        elif mine:
            yield _Entry(prefix + key, key, value)


def _is_count(entry: _Entry) -> bool:
    return entry.value is not True and bool(_COUNT.fullmatch(entry.key))


def _all_at_most_one(counts: list[_Entry]) -> bool:
    return bool(counts) and all(at_most_one(entry.value) for entry in counts)


def _is_off(entry: _Entry) -> bool:
    """moe_config.enabled false: the rest of it is how it would be."""
    return "." in entry.path and entry.key in ("enabled", "enable", "use") and says_nothing(entry.value)


def _means_experts(entry: _Entry) -> bool:
    """A list holds layers' numbers or a mark for each: 0 is a layer in the one, no expert in the other."""
    if isinstance(entry.value, list):
        places = bool(_PLACES.search(entry.key))
        return any(places or not says_nothing(item) for item in entry.value)
    if isinstance(entry.value, int | float) and entry.value < 0:
        return False
    return entry.value is True or not at_most_one(entry.value)


def _shown(entry: _Entry) -> str:
    return f"{entry.path}={show(entry.value)}"
