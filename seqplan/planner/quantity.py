"""Quantity: a number that carries its source, so that every figure can be traced.

A Quantity is a float; arithmetic gives plain floats. In YAML it is `{value: 3.35e12, source: "..."}`.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema


class Quantity(float):
    """A finite, non-negative float with the text that says where it comes from."""

    source: str

    def __new__(cls, value: float, source: str) -> Quantity:
        self = super().__new__(cls, value)
        self.source = source
        return self

    def __getnewargs__(self) -> tuple[float, str]:  # type: ignore[override]
        return float(self), self.source

    @classmethod
    def _validate(cls, raw: Any) -> Quantity:
        if isinstance(raw, Quantity):
            return raw
        if not isinstance(raw, dict) or set(raw) != {"value", "source"}:
            raise ValueError("a number needs {value: ..., source: ...}")
        value, source = raw["value"], raw["source"]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"value must be a number, not {value!r}")
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"value must be finite and not negative, not {value!r}")
        if not isinstance(source, str) or not source.strip():
            raise ValueError("source must say where the number comes from")
        return cls(value, source)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda q: {"value": float(q), "source": q.source}
            ),
        )
