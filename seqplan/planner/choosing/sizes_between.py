"""Micro-batch sizes between those that were tried, where one of them may still lead.

Where a replica's batch has many divisors the search tries a few of them first (layout_space.py). Between two
neighbours a step takes no less than the larger one's work, as matmuls of more rows are no slower, and the
smaller one's waiting; and nothing fits there if the smaller one does not. What that leaves is tried as well
(test_micro_batches.py: the same answer as from every divisor).
"""

from __future__ import annotations

import numpy as np

from seqplan.planner.choosing.bounds import row_bounds
from seqplan.planner.choosing.layout_grid import Grid, Sizes
from seqplan.planner.choosing.layout_table import Bools, Ints, LayoutTable
from seqplan.planner.layout_space import micro_batch_sizes
from seqplan.planner.question import Pins, Question
from seqplan.planner.reading.integers import divisors

UNEVENNESS = 0.02
"""Assumed: by how much a larger micro-batch may be slower a sequence after all: whole tiles of a matmul."""

ALIKE = ("dp", "tp", "sp", "attention", "ulysses_degree", "tp_sequence_parallel")


class SizesBetween:
    """What a first pass saw of the sizes that it tried."""

    def __init__(self, question: Question, pins: Pins) -> None:
        self.question, self.pins = question, pins
        self._grids: dict[int, list[Grid]] = {}
        self._stood: dict[int, Bools] = {}
        self._fitted: dict[int, Bools] = {}

    @property
    def thinned(self) -> bool:
        """Whether sizes were left out of any replica's batch."""
        return self._thinned(1)

    def _thinned(self, dp: int) -> bool:
        batch, free = self.question.train.global_batch_size, self.pins.micro_batch_size is None
        return free and batch % dp == 0 and micro_batch_sizes(batch, dp, self.pins) != divisors(batch // dp)

    def saw(self, grid: Grid) -> None:
        """A grid of a first pass; all those of one pp have the same rows."""
        self._grids.setdefault(grid.table.pp, []).append(grid)

    def judged(self, grid: Grid, rows: Ints, fitted: Bools) -> None:
        """Of some rows of a grid, all of which are allowed, whether any cell fits."""
        pp, none = grid.table.pp, np.zeros(len(grid.table), dtype=np.bool_)
        self._stood.setdefault(pp, none.copy())[rows] = True
        self._fitted.setdefault(pp, none.copy())[rows] |= fitted

    def to_try(self, worst_s: float) -> Sizes | None:
        """Sizes that may take no longer than this; None: no size."""
        found: dict[tuple[int, int, int, int], set[int]] = {}
        for pp in self._stood:
            self._of_stages(pp, worst_s, found)
        if not found:
            return None
        return lambda *degrees: tuple(sorted(found.get(degrees, ())))

    def _of_stages(self, pp: int, worst_s: float, found: dict[tuple[int, int, int, int], set[int]]) -> None:
        """Those of one pp."""
        table = self._grids[pp][0].table
        smaller, larger = self._neighbours(pp)
        if not len(smaller):
            return
        if np.isfinite(worst_s):
            places, both = np.unique(np.concatenate([smaller, larger]), return_inverse=True)
            low, high = both[: len(smaller)], both[len(smaller) :]
            parts = [grid.take(places) for grid in self._grids[pp]]
            bounds = row_bounds(self.question, parts[0])
            least = np.min([bounds.least_between_s(part.table, low, high) for part in parts], axis=0)
            smaller, larger = (rows[least * (1 - UNEVENNESS) <= worst_s] for rows in (smaller, larger))
        for one, other in zip(smaller, larger, strict=True):
            degrees = (pp, int(table.dp[one]), int(table.tp[one]), int(table.sp[one]))
            found.setdefault(degrees, set()).update(self._between(table, one, other))

    def _neighbours(self, pp: int) -> tuple[Ints, Ints]:
        """Rows of neighbouring sizes, alike in all else, with sizes between them that may fit."""
        table, stood, fitted = self._grids[pp][0].table, self._stood[pp], self._fitted[pp]
        thinned = [dp for dp in np.unique(table.dp[stood]).tolist() if self._thinned(dp)]
        rows = np.flatnonzero(np.isin(table.dp, thinned))
        sizes, *alike = (getattr(table, name)[rows] for name in ("micro_batch_size", *ALIKE))
        order = np.lexsort((sizes, *alike))
        rows, low, high = rows[order], rows[order[:-1]], rows[order[1:]]
        same = np.logical_and.reduce([np.diff(column[order]) == 0 for column in alike])
        # A size that is not allowed says nothing of memory, unless none is: a tp that divides no heads.
        kinds = np.concatenate([[0], np.cumsum(~same)])[: len(rows)]
        allowed = np.zeros(len(rows), dtype=np.bool_)
        np.logical_or.at(allowed, kinds, stood[rows])
        found = same & allowed[kinds[:-1]] & (fitted[low] | ~stood[low])
        gaps = np.array(
            [bool(self._between(table, *ends)) for ends in zip(low[found], high[found], strict=True)],
            dtype=np.bool_,
        )
        return low[found][gaps], high[found][gaps]

    def _between(self, table: LayoutTable, low: int, high: int) -> list[int]:
        """Sizes between those of two rows."""
        batch, sizes = self.question.train.global_batch_size // int(table.dp[low]), table.micro_batch_size
        return [size for size in divisors(batch) if sizes[low] < size < sizes[high]]
