"""One sentence for a name that is not built in: the nearest ones, then all of them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from seqplan.planner.reading.strict_yaml import shorten

LEAST_LIKENESS = 0.55
"""Below it a name is another thing, not a slip."""


def unknown_name(what: str, name: object, known: Sequence[str]) -> str:
    """`device = A100-80GB is not built in; did you mean a100-80? built in are a10g, ...`"""
    near = nearest_names(str(name)[:100], known)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{what} = {shorten(name)} is not built in; {hint}built in are {', '.join(known)}"


def nearest_names(name: str, known: Sequence[str]) -> list[str]:
    """At most three, best first. A common beginning weighs in: H10O-80GB is an H100, not an A100."""
    likeness = {}
    for each in known:
        ours, theirs = _folded(each), _folded(name)
        common = next(
            (i for i, pair in enumerate(zip(ours, theirs, strict=False)) if len({*pair}) > 1), len(ours)
        )
        ratio = difflib.SequenceMatcher(None, ours, theirs).ratio()
        likeness[each] = ratio + 0.1 * min(common, 4) * (ratio > 0.4)
    best = max(likeness.values(), default=0.0)
    near = [each for each in known if likeness[each] >= max(LEAST_LIKENESS, best - 0.2)]
    return sorted(near, key=lambda each: -likeness[each])[:3]


def _folded(name: str) -> str:
    """Without what people write differently: case, separators, units, the vendor, the letter O for a zero."""
    return re.sub(r"nvidia|amd|gb|[^a-z0-9]", "", name.casefold()).replace("o", "0")
