"""The base of every specification: frozen, closed (an unknown key is an error) and strict about types."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError


class Spec(BaseModel):
    """A frozen pydantic model that refuses unknown keys and booleans or strings where a number is meant."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())


def validation_text(error: Exception, prefix: str = "") -> str:
    """All that pydantic found, in one line: each field by its path, what is wrong, and the value."""
    if not isinstance(error, ValidationError):
        return str(error)
    parts = []
    for item in error.errors(include_url=False):
        place = ".".join(str(key) for key in item["loc"])
        message = item["msg"].removeprefix("Value error, ").removeprefix("Input ")
        shown = repr(item["input"])
        value = (
            f" (got {shown})" if len(shown) <= 60 and item["type"] not in ("missing", "value_error") else ""
        )
        parts.append(
            f"{prefix}{place}: {message[:1].lower()}{message[1:]}{value}" if place else f"{prefix}{message}"
        )
    return "; ".join(parts)
