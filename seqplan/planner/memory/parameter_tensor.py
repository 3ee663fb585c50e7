"""ParameterTensor: one weight of a model, its shape, where it lives and how tp divides it."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from seqplan.planner.spec import Spec

Place = Literal["embedding", "layer", "final", "head"]
"""Where a parameter lives: before the layers, in each layer, after the last layer, in the head."""

TpSplit = Literal["column", "row", "vocab", "replicated"]
"""How tp divides it: output features (dim 0), input features (dim 1), vocabulary rows (dim 0), or not."""


def as_tuple(value: Any) -> Any:
    """Lists become tuples: YAML and JSON know only lists, and a strict tuple refuses them."""
    return tuple(as_tuple(v) for v in value) if isinstance(value, list) else value


class ParameterTensor(Spec):
    """One named weight (of one layer, where `place` is "layer"): its shape and how tp divides it."""

    name: str
    place: Place
    shape: Annotated[tuple[int, ...], BeforeValidator(as_tuple)]
    tp_split: TpSplit
    tied_to: str | None = Field(default=None, description="set: the same storage as that tensor, counts zero")

    @property
    def elements(self) -> int:
        """Elements that it adds to the model; a tied tensor adds none."""
        return 0 if self.tied_to else math.prod(self.shape)
