"""Leaders: the fastest layouts seen so far, each kept as a row of numbers, in one order for all tables.

Step times that agree to six digits are the same, and the simpler layout goes first. Twins are shown once:
of two layouts of equal time, degrees and micro-batch one has an option that gains nothing there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seqplan.planner.activations import Floats
from seqplan.planner.choosing.layout_table import Bools, Ints, LayoutTable
from seqplan.planner.layout import AXES, Layout

SAME_TIME = 6
"""Step times that agree to so many digits are the same; the simpler layout then goes first."""

Key = tuple[float, ...]
Row = tuple[Key, int, LayoutTable, int]
"""Sort key, number of the table, the table and the row in it."""


def rounded_time_s(step_time_s: Floats) -> Floats:
    """Times to SAME_TIME digits."""
    with np.errstate(divide="ignore"):
        digits = SAME_TIME - 1 - np.floor(np.log10(step_time_s))
    scale = 10.0**digits
    return np.asarray(np.round(step_time_s * scale) / scale)


def simplicity(table: LayoutTable) -> list[NDArray[np.float64]]:
    """Among equals first: fewer axes, less recomputation, less sharding; of a flat table."""
    axes = sum((table.degree(axis) > 1).astype(np.float64) for axis in AXES)
    keys = [
        axes,
        table.recompute,
        table.zero_stage,
        table.degree("pp"),
        table.tp,
        table.tp_sequence_parallel,
        table.sp,
        table.attention,
        table.ulysses_degree,
        table.micro_batch_size,
        table.recompute_layers,
        -table.zero_shard_size,
    ]
    return [np.asarray(key, dtype=np.float64) for key in keys]


class Leaders:
    """The best `top` of all that was added."""

    def __init__(self, top: int, faster_than_s: float = np.inf) -> None:
        self.top = top
        self._rows: list[Row] = []
        self.worst_s = faster_than_s
        """A slower layout cannot enter, or not any more."""
        self._tables = 0

    def add(self, table: LayoutTable, step_time_s: Floats, cells: Bools) -> None:
        """The cells of a table that a mask lets through, with their times."""
        times = rounded_time_s(np.broadcast_to(step_time_s, table.shape)[cells])
        places = np.flatnonzero(cells.ravel())
        near = times <= self.worst_s
        near[near] = times[near] <= self._enough(table, times[near], places[near])
        if not near.any():
            return
        flat, times = table.flat(places[near]), times[near]
        columns = np.stack([times, *simplicity(flat)], axis=1)
        self._tables += 1
        found = [(tuple(columns[row]), self._tables, flat, row) for row in range(len(flat))]
        self._rows = self._without_twins(sorted(self._rows + found, key=lambda item: (item[0], item[1])))
        if len(self._rows) >= self.top:
            self.worst_s = self._rows[-1][0][0]

    def _enough(self, table: LayoutTable, times: Floats, places: Ints) -> float:
        """A time up to which there are `top` layouts even without twins."""
        keep = 2 * self.top
        while keep < len(times):
            limit = float(np.partition(times, keep)[keep])
            below = times <= limit
            rows = places[below] % len(table)  # degrees and micro-batch lie on the last axis
            apart = (table.dp[rows], table.tp[rows], table.micro_batch_size[rows])
            if len(set(zip(times[below].tolist(), *(c.tolist() for c in apart), strict=True))) >= self.top:
                return limit
            keep *= 4
        return np.inf

    def _without_twins(self, rows: list[Row]) -> list[Row]:
        seen: set[tuple[float, ...]] = set()
        kept = []
        for item in rows:
            key, _, table, row = item
            degrees = [float(table.degree(axis)[row]) for axis in AXES]
            twin = (key[0], float(table.micro_batch_size[row]), *degrees)
            if twin not in seen:
                seen.add(twin)
                kept.append(item)
            if len(kept) == self.top:
                break
        return kept

    @property
    def best_s(self) -> float:
        """Seconds of the first; infinite where there is none."""
        return self._rows[0][0][0] if self._rows else np.inf

    def layouts(self) -> list[Layout]:
        """The fastest first."""
        return [table.row(row) for _, _, table, row in self._rows]
