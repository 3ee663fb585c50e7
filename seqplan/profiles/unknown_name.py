"""One sentence for a name that is not built in: the nearest ones, then all of them."""

from __future__ import annotations

from collections.abc import Sequence

from seqplan.planner.strict_yaml import shorten
from seqplan.planner.validation import nearest


def unknown_name(what: str, name: object, known: Sequence[str]) -> str:
    """`device = H10O-80GB is not built in; did you mean h100-sxm? built in are a10g, ...`"""
    hint = nearest(str(name), known, cutoff=0.4)
    listed = f"built in are {', '.join(known)}"
    return f"{what} = {shorten(name)} is not built in; {hint + ' ' if hint else ''}{listed}"
