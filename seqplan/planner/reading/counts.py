"""Counts of tokens and sequences as people type them: 4096, grouped as 131_072, or 4k, which is 4096.

The same in a flag and in a file, where a plain number stays a number: text is read for its k or M alone.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

_COUNT = re.compile(r"([0-9]+(?:[_,][0-9]{3})*|[0-9]+)([kKmM]?)")
_SUFFIXES = {"": 1, "k": 2**10, "m": 2**20}


def parse_count(typed: str) -> tuple[int, str] | None:
    """The whole number and its suffix; None where the text is no count."""
    match = _COUNT.fullmatch(typed.strip())
    if match is None:
        return None
    return int(re.sub("[_,]", "", match[1])) * _SUFFIXES[match[2].lower()], match[2]


def _with_suffix(raw: Any) -> Any:
    """Text of a file with its suffix as the number; any other value as it is, for the field's own checks."""
    if not isinstance(raw, str):
        return raw
    number, suffix = parse_count(raw) or (0, "")
    if not suffix:
        raise ValueError("is text; write a whole number without quotes, or one with k or M (4k is 4096)")
    return number


Count = Annotated[int, BeforeValidator(_with_suffix)]
"""A field that takes 4k beside 4096, in a plan as in a case of `score`."""
