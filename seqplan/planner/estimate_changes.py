"""Two estimates compared, every number in them: what a plan file says beside what this version computes.

The notes are text for people and may be worded anew between versions; all else has to be the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SAME = 1e-6
"""Relative difference up to which two numbers are the same: sums in another order differ by less."""

NOT_COMPARED = ("notes",)


@dataclass(frozen=True)
class Difference:
    """One value that is not the same."""

    path: str
    planned: str
    now: str
    by: str
    """By how much, as "+12.3%, "; empty where that cannot be said."""


def differences(planned: Any, now: Any) -> list[Difference]:
    """Where two estimates, as plain dicts and lists, differ."""
    return list(_walk("", planned, now))


def _walk(path: str, planned: Any, now: Any) -> Iterator[Difference]:
    if isinstance(planned, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys((*now, *planned)):
            if key not in NOT_COMPARED:
                inner = f"{path}.{key}" if path else str(key)
                yield from _walk(inner, planned.get(key), now.get(key))
    elif _is_list(planned) and _is_list(now) and len(planned) == len(now):
        for place, (left, right) in enumerate(zip(planned, now, strict=True)):
            yield from _walk(f"{path}[{place}]", left, right)
    elif _is_number(planned) and _is_number(now):
        if not (math.isfinite(planned) and math.isclose(planned, now, rel_tol=SAME)):
            known = math.isfinite(planned) and now
            by = f"{planned / now - 1:+.1%}, " if known else ""
            yield Difference(path, _figure(path, planned), _figure(path, now), by)
    elif planned != now:
        yield Difference(path, _shown(planned), _shown(now), "")


def _figure(path: str, value: float) -> str:
    """A number; with its unit where it is one of the two that matter most."""
    if math.isfinite(value) and path == "memory.peak_bytes":
        return f"{value / 2**30:.6g} GiB"
    return f"{value:.6g} s" if math.isfinite(value) and path == "time.step_time_s" else f"{value:.6g}"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    if _is_number(value):
        return f"{value:.6g}"
    if value is None:
        return "not there"
    return (
        f"a list of {len(value)}"
        if _is_list(value)
        else "a group"
        if isinstance(value, Mapping)
        else str(value)
    )
