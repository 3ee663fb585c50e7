"""Tensors that come and go together, as bytes by kind."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from seqplan.planner.activations import total_bytes


class Bundle:
    """Bytes by kind of tensors that come and go together; each a number or a column."""

    def __init__(self, by_kind: dict[str, Any]) -> None:
        self.by_kind = by_kind

    @cached_property
    def total(self) -> Any:
        return total_bytes(self.by_kind)

    def plus(self, other: Bundle, times: Any = 1) -> Bundle:
        """This bundle and `times` the other."""
        by_kind = dict(self.by_kind)
        for kind, value in other.by_kind.items():
            by_kind[kind] = by_kind.get(kind, 0.0) + times * value
        return Bundle(by_kind)

    def times(self, count: Any) -> Bundle:
        return Bundle({kind: count * value for kind, value in self.by_kind.items()})


EMPTY = Bundle({})


def larger(one: Bundle, other: Bundle) -> Bundle:
    """Element by element the one with more bytes in all."""
    wins = np.asarray(one.total) >= np.asarray(other.total)
    if wins.all():
        return one
    kinds = (*one.by_kind, *(kind for kind in other.by_kind if kind not in one.by_kind))
    return Bundle(
        {kind: np.where(wins, one.by_kind.get(kind, 0.0), other.by_kind.get(kind, 0.0)) for kind in kinds}
    )
