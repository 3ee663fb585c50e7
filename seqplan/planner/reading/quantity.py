"""Quantity: a number that carries its source, so that every figure can be traced.

A Quantity is a float; arithmetic gives plain floats. In YAML it is `{value: 3.35e12, source: "..."}`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, GetCoreSchemaHandler
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
            raise ValueError(f"must be a number, not {value!r:.60}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise ValueError("must be a finite number")
        if number < 0:
            raise ValueError("must not be negative")
        if not isinstance(source, str) or not source.strip():
            raise ValueError("source must say where the number comes from")
        return cls(number, source)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda q: {"value": float(q), "source": q.source}
            ),
        )


def _positive(quantity: Quantity) -> Quantity:
    if quantity <= 0:
        raise ValueError("must be more than 0")
    return quantity


def _share(quantity: Quantity) -> Quantity:
    if not 0 < quantity <= 1:
        raise ValueError("must be more than 0 and at most 1 (a share: 0.8 means 80 %)")
    return quantity


def _fraction(quantity: Quantity) -> Quantity:
    if quantity >= 1:
        raise ValueError("must be less than 1 (a share: 0.05 means 5 %)")
    return quantity


PositiveQuantity = Annotated[Quantity, AfterValidator(_positive)]
"""A rate or a size: nothing can be divided by zero."""

ShareQuantity = Annotated[Quantity, AfterValidator(_share)]
"""A share that something reaches, (0, 1]."""

FractionQuantity = Annotated[Quantity, AfterValidator(_fraction)]
"""A share that is lost, [0, 1)."""
