"""What a value of a config.json says: nothing, a count of none or one, or something.

Files in the wild write counts as strings and switches as words, so both are understood here and nowhere else.
"""

from __future__ import annotations

from typing import Any

_NOTHING = {"", "0", "none", "null", "false", "no", "off"}


def says_nothing(value: Any) -> bool:
    """Absent, false, zero, empty, or a word for one of these."""
    if isinstance(value, str):
        return value.strip().lower() in _NOTHING
    return value is None or value is False or value in (0, [], {})


def at_most_one(value: Any) -> bool:
    """A count that makes no mixture: nothing or one, also one for each layer. True is a switch, no count."""
    if isinstance(value, list):
        return all(at_most_one(item) for item in value)
    if isinstance(value, str):
        return says_nothing(value) or value.strip() in ("1", "1.0", "0.0")
    return says_nothing(value) or (value is not True and value == 1)
