"""Working rows of an inventory, what exists at single moments only, as one bundle for each moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np

from seqplan.planner.activations import Moment, Part, WorkingRow, sum_by_kind
from seqplan.planner.memory.bundle import Bundle, larger
from seqplan.planner.memory.model_states import STAGE_SYMBOLS

MOMENTS: tuple[Moment, ...] = get_args(Moment)

STEP_SYMBOLS = frozenset(("first_backward", "last_backward"))
"""Where in a step a backward stands."""

TWO_HEIGHTS: tuple[tuple[Moment, Moment, Part | None], ...] = (
    ("mlp_backward", "up_backward", "mlp_inner"),
    ("attention_backward", "qkv_backward", "attention_inner"),
    ("attention_forward", "values_forward", None),
)
"""Moments that are the higher of two: a part's backward in its middle and at its input, when its inner part
has gone; rsa's forward in two turns of the ring, with keys and then with values."""


class WorkingRows:
    """The rows of a trainer; `values` are the symbols that all stages of a table share."""

    def __init__(
        self,
        rows: Sequence[WorkingRow],
        values: dict[str, Any],
        of_parts: Callable[..., Bundle],
        in_chunks: Callable[[dict[str, Any]], dict[str, Any]],
    ) -> None:
        self._of_parts, self._in_chunks = of_parts, in_chunks
        own = STAGE_SYMBOLS | STEP_SYMBOLS
        # Bytes of each row that no stage's own symbol enters are known once.
        self._rows = [(row, None if row.names & own else row.size_bytes(values)) for row in rows]
        moved = {moment for row in rows if row.names & STEP_SYMBOLS for moment in row.at}
        for moment, other, _ in TWO_HEIGHTS:
            moved |= {moment, other} if {moment, other} & moved else set()
        self._moved = [moment for moment in MOMENTS if moment in moved]
        """Moments at which it matters where in a step a backward stands."""

    def of(self, values: dict[str, Any]) -> dict[str, Bundle]:
        """The rows alive at each moment, each row sized once."""
        return self._at(MOMENTS, values)

    def later(self, before: dict[str, Bundle], values: dict[str, Any]) -> dict[str, Bundle]:
        """The same of another backward of the step; moments without a difference keep their bundles."""
        return {**before, **self._at(self._moved, values)}

    def _at(self, moments: Sequence[Moment], values: dict[str, Any]) -> dict[str, Bundle]:
        alive: dict[str, list[tuple[str, Any]]] = {moment: [] for moment in moments}
        for row, known in self._rows:
            there = [moment for moment in row.at if moment in alive]
            size = (row.size_bytes(values) if known is None else known) if there else 0.0
            if np.any(size):
                for moment in there:
                    alive[moment].append((row.kind, size))
        working = {moment: Bundle(self._in_chunks(sum_by_kind(sizes))) for moment, sizes in alive.items()}
        for moment, other, inner in TWO_HEIGHTS:
            if other in working and working[other].by_kind:
                second = working[other]
                if inner is not None:
                    second = second.plus(self._of_parts(inner), -1.0)
                working[moment] = larger(working[moment], second)
        return working
