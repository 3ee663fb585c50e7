"""Splits of the layers for tight memory, tried where they may lead: shorter first stages, and last ones.

Under 1F1B the first stage keeps the most micro-batches, so where memory is what bounds, a split that is even
in time makes every stage recompute for the sake of the first, or fits nowhere. Splits that take layers off
the first stages cost little time then. They are many, and matter only in the pipelines that lead, or that
nearly fit where nothing does (test_stage_splits.py: against every split of small models).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from seqplan.planner.choosing.bounds import row_bounds
from seqplan.planner.choosing.layout_grid import Grid, Sizes
from seqplan.planner.choosing.layout_table import Bools, Ints
from seqplan.planner.layout import Layout
from seqplan.planner.layout_space import Choices, stage_splits
from seqplan.planner.question import Pins, Question

FEWER = 2
"""Layers that a first stage may have fewer than in the even split: enough in test_stage_splits.py."""


def tight_splits(question: Question, pp: int, pins: Pins) -> list[tuple[int, ...]]:
    """Splits with fewer layers on the first stages, beside those of `stage_splits`."""
    num_layers, others = question.model.num_layers, stage_splits(question, pp, pins)
    if pp == 1 or pp > num_layers:
        return []
    even = others[0]
    found: dict[tuple[int, ...], None] = {}
    for last in sorted({*(split[-1] for split in others), even[-1] + 1, even[-1] + FEWER * (pp == 2)}):
        for first in range(even[0], max(even[0] - FEWER, 1) - 1, -1):
            for middle in _middles(num_layers - first - last, pp - 2, first):
                found[(first, *middle, last)] = None
    return [
        split
        for split in found
        if split not in others
        and sum(split) == num_layers
        and min(split) >= 1
        and max(split) <= max(even) + 1
    ]


def _middles(layers: int, stages: int, first: int) -> Iterator[tuple[int, ...]]:
    """The middle stages: even, the longer ones last or first, or each a layer longer than the one before."""
    if not stages:
        yield ()
        return
    share, left_over = divmod(max(layers, 0), stages)
    even = (*[share] * (stages - left_over), *[share + 1] * left_over)
    yield even
    yield even[::-1]
    longest = first
    while longest < first + stages and sum(_ramp(first, longest, stages)) < layers:
        longest += 1
    ramp = _ramp(first, longest, stages)
    excess = sum(ramp) - layers
    for stage in [stage for stage in range(stages) if ramp[stage] == longest][: max(excess, 0)]:
        ramp[stage] -= 1
    yield tuple(ramp)


def _ramp(first: int, longest: int, stages: int) -> list[int]:
    return [min(first + stage + 1, longest) for stage in range(stages)]


class TightRows:
    """Rows of pipelines that fit in no split without recomputation, as the passes before saw them."""

    def __init__(self, question: Question, pins: Pins, choices: Choices) -> None:
        self.question = question
        has = question.implementation.capabilities
        free = pins.stage_layers is None and pins.pp != 1
        self.matters = free and choices.uneven_splits and choices.tight_splits and has.uneven_stages
        self._grids: dict[tuple[int, int], list[Grid]] = {}
        self._rows: dict[tuple[int, int], Bools] = {}
        self._least: dict[int, float] = {}

    def judged(self, number: int, grid: Grid, rows: Ints, tight: Bools) -> None:
        """Of allowed rows of a grid, whether memory bounds them; grids of a `number` and pp have the same."""
        pp = grid.table.pp
        if pp == 1 or not self.matters:
            return
        key = (number, pp)
        grids = self._grids.setdefault(key, [])
        if not grids or grids[-1] is not grid:
            grids.append(grid)
        self._rows.setdefault(key, np.zeros(len(grid.table), dtype=np.bool_))[rows] |= tight

    def peaked(self, grid: Grid, least_bytes: float) -> None:
        """The least peak of a grid of which nothing fits."""
        pp = grid.table.pp
        self._least[pp] = min(self._least.get(pp, np.inf), least_bytes)

    def to_try(self, leaders: Sequence[Layout], best_s: float, limit_bytes: float) -> Sizes | None:
        """The micro-batch sizes of each set of degrees that may gain; None: nothing may."""
        pps: Iterable[int] = {layout.pp for layout in leaders} or [
            pp for pp, least in self._least.items() if least * (1 - self._saved(pp)) <= limit_bytes
        ]
        found: dict[tuple[int, int, int, int], set[int]] = {}
        for (number, pp), rows in self._rows.items():
            if pp in pps and rows.any():
                grids = [grid.take(np.flatnonzero(rows)) for grid in self._grids[number, pp]]
                table = grids[0].table
                fast = np.ones(len(table), dtype=np.bool_)
                if np.isfinite(best_s):
                    bounds = row_bounds(self.question, grids[0])
                    fast = np.min([bounds.least_s(grid.table) for grid in grids], axis=0) < best_s
                for row in np.flatnonzero(fast):
                    degrees = (pp, int(table.dp[row]), int(table.tp[row]), int(table.sp[row]))
                    found.setdefault(degrees, set()).add(int(table.micro_batch_size[row]))
        if not found:
            return None
        return lambda *degrees: tuple(sorted(found.get(degrees, ())))

    def _saved(self, pp: int) -> float:
        """The share of a peak that a shorter first stage saves at most."""
        first = stage_splits(self.question, pp, Pins())[0][0]
        return min(FEWER, first - 1) / max(first, 1)
