"""Fields of a layout as their flags are typed: `--mesh-order pp,dp,sp,tp`, never a Python tuple.

What a user reads back from us he can paste into the next command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flag_name(field: str) -> str:
    """The field as a flag: micro_batch_size -> --micro-batch-size."""
    return "--" + field.replace("_", "-")


def typed_value(value: Any) -> str:
    """The value as it stands behind its flag: 6,6 for (6, 6); `all` where a count is left out."""
    if value is None:
        return "all"
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def typed_flag(field: str, value: Any) -> str:
    """Flag and value: `--tp 4`, `--no-tp-sequence-parallel`."""
    if isinstance(value, bool):
        return flag_name(field) if value else flag_name(f"no_{field}")
    return f"{flag_name(field)} {typed_value(value)}"


def typed_flags(fields: Mapping[str, Any]) -> str:
    """Several of them, as they would stand in a command."""
    return " ".join(typed_flag(field, value) for field, value in fields.items())
