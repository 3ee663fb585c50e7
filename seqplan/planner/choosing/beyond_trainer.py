"""What beats the pick with options that the chosen trainer does not have: the whole space, by bounds.

That space is a hundred times the trainer's own, and only what is faster than the pick matters. So time comes
before memory here, from coarse to fine, and each step is a lower bound of the next (planner test: the same
answer as without bounds):
1. a row (degrees, batch, attention) in any split of the layers, without recomputation, dp and optimizer, with
   the least time to fill its pipeline (bounds.py);
2. the row with each sharding in each split and schedule, still without recomputation, which only costs time;
3. whether a cell fits at all, and its time with no more recomputed than that takes, found in large steps;
4. what is still there is costed in full, memory first.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from seqplan.planner.activations import Floats, layer_bytes, total_bytes
from seqplan.planner.choosing.bounds import RowBounds, bare_rows, row_bounds
from seqplan.planner.choosing.layout_grid import Grid, candidate_grids
from seqplan.planner.choosing.layout_table import Bools, Ints, LayoutTable
from seqplan.planner.choosing.ranking import Leaders
from seqplan.planner.choosing.scan import lead, row_chunks
from seqplan.planner.layout import Layout
from seqplan.planner.layout_space import all_choices, micro_batch_sizes
from seqplan.planner.memory.peak_memory import StageMemories, peak_memory
from seqplan.planner.memory.symbols import layout_values
from seqplan.planner.question import Pins, Question
from seqplan.planner.reading.integers import divisors
from seqplan.planner.rules.legality import RULES, sieve
from seqplan.planner.time_model import time_table

BETWEEN = 4
"""Numbers of recomputed layers that step 3 tries of each mode."""

LEAST_GAIN = 0.005
"""A layout less than so much faster than the pick is not worth another trainer."""


def faster_elsewhere(question: Question, pins: Pins, pick_s: float, top: int) -> list[Layout]:
    """Layouts that fit and beat the pick's step time, but that the chosen trainer cannot run."""
    return _Beyond(question, pick_s * (1.0 - LEAST_GAIN), top).run(pins)


class _Beyond:
    """The state of one search."""

    def __init__(self, question: Question, faster_than_s: float, top: int) -> None:
        self.question = question
        self.leaders = Leaders(top, faster_than_s)
        self._known: dict[int, tuple[Ints, RowBounds | None]] = {}

    def run(self, pins: Pins) -> list[Layout]:
        for grid, rows, least_s in self._most_hopeful_first(pins):
            fast = rows[least_s < self.leaders.worst_s]
            splits = [
                each for each in grid.each_split() if not _breaks(self.question, each.table, True).all()
            ]
            if len(fast) and splits:
                self._by_sharding([each.take(fast) for each in splits])
        return self.leaders.layouts()

    def _most_hopeful_first(self, pins: Pins) -> list[tuple[Grid, Ints, Floats]]:
        """The grids with rows that may be faster, and of each row the least seconds."""
        found = []
        sizes = partial(few_sizes, self.question.train.global_batch_size, pins)
        for grid in candidate_grids(self.question, pins, all_choices(self.question), sizes):
            rows, bounds = self._bounds(grid)
            if bounds is None:
                continue
            least_s = bounds.least_s(grid.table)
            if (least_s < self.leaders.worst_s).any():
                found.append((grid, rows, least_s))
        return sorted(found, key=lambda item: float(item[2].min()))

    def _bounds(self, grid: Grid) -> tuple[Ints, RowBounds | None]:
        """Step 1, of the rows that are legal; the same for all pipelines of a pp."""
        pp = grid.table.pp
        if pp not in self._known:
            rows = np.flatnonzero(~_breaks(self.question, bare_rows(grid.table), False))
            self._known[pp] = rows, row_bounds(self.question, grid.take(rows)) if len(rows) else None
        return self._known[pp]

    def _by_sharding(self, splits: list[Grid]) -> None:
        """Step 2: which cells [sharding, row] may win without recomputation, in any order and split."""
        none, first = np.zeros((1, 1, 1), dtype=np.int64), splits[0]
        fast = np.zeros(first.weight.shape, dtype=np.bool_)
        for part in splits:
            bare = replace(part, table=replace(part.table, recompute=none, recompute_layers=none))
            timed = bare.in_orders(np.ones(len(part.table), dtype=np.bool_))[0]
            seconds = np.broadcast_to(time_table(self.question, timed).step_time_s, timed.shape)
            fast |= (seconds < self.leaders.worst_s).reshape(-1, *timed.shape[-2:]).any(axis=0)
        fast &= first.weight > 0
        shardings = np.flatnonzero(fast.any(axis=1))
        if not len(shardings):
            return
        splits, fast = [part.of_shardings(shardings) for part in splits], fast[shardings]
        for rows, parts in self._by_modes(splits, np.flatnonzero(fast.any(axis=0))):
            fast[:, rows] &= self._in_time(parts, rows)[:, rows]
            for chosen in row_chunks(parts[0].table, rows[fast[:, rows].any(axis=0)]):
                self._in_full([part.take(chosen) for part in parts], fast[:, chosen])

    def _by_modes(self, splits: list[Grid], rows: Ints) -> list[tuple[Ints, list[Grid]]]:
        """Rows with the recomputation that may help them: a selective one that frees nothing only costs."""
        table = splits[0].table
        if not table.is_recompute("selective").any():
            return [(rows, splits)]
        frees = selective_frees(self.question, table)[rows]
        places = np.flatnonzero(~table.is_recompute("selective")[:, 0, 0])
        return [
            (chosen, parts)
            for chosen, parts in ((rows[frees], splits), (rows[~frees], _recomputing(splits, places)))
            if len(chosen)
        ]

    def _in_time(self, splits: list[Grid], rows: Ints) -> Bools:
        """Step 3: which cells [sharding, row] of some rows fit, and are fast with the least recomputation."""
        first = splits[0].table
        places = _some_recomputed(first, [part.table.stage_layers for part in splits])
        found = np.zeros(splits[0].weight.shape, dtype=np.bool_)
        small = _recomputing(splits, places)
        for chosen in row_chunks(small[0].table, rows):
            shared = StageMemories(self.question, small[0].table.take(chosen))
            for part in (each.take(chosen) for each in small):
                fits = peak_memory(self.question, part.table, shared).fits
                table, possible = least_recomputed(part.table, fits)
                timed = replace(part, table=table).in_orders(np.ones(len(table), dtype=np.bool_))[0]
                seconds = time_table(self.question, timed).step_time_s
                fast = (np.broadcast_to(seconds, timed.shape) < self.leaders.worst_s) & possible
                found[:, chosen] |= fast.reshape(-1, *fast.shape[-2:]).any(axis=0)
        return found

    def _in_full(self, splits: list[Grid], fast: Bools) -> None:
        """Step 4."""
        table = splits[0].table
        sieved, shared = sieve(self.question, table), StageMemories(self.question, table)
        standing = np.broadcast_to(sieved.costable & ~sieved.runnable & fast, table.shape)
        if not standing.any():
            return
        for part in splits:
            fits = standing & peak_memory(self.question, part.table, shared).fits
            if fits.any():
                lead(self.question, self.leaders, part, fits)


def few_sizes(batch: int, pins: Pins, pp: int, dp: int, tp: int, sp: int) -> tuple[int, ...]:
    """Micro-batch sizes of these degrees: of many divisors those up to 8 and the powers of two.

    The pick's own search has a second pass for those between; this space is too large for one.
    """
    known = micro_batch_sizes(batch, dp, pins)
    every = divisors(batch // dp) if batch % dp == 0 else known
    if pins.micro_batch_size is not None or len(known) == len(every):
        return known
    return tuple(size for size in every if size <= 8 or size & (size - 1) == 0)


def selective_frees(question: Question, table: LayoutTable) -> Bools:
    """Rows in which selective recomputation keeps less than none: not those of a fused attention kernel."""
    values, kept = layout_values(question, table), question.implementation.layer
    saved = total_bytes(layer_bytes(kept, values, "none")) - total_bytes(
        layer_bytes(kept, values, "selective")
    )
    return np.broadcast_to(saved > 0, (len(table),))


def _recomputing(splits: list[Grid], places: Ints) -> list[Grid]:
    """The grids with some of their recomputations."""
    table = splits[0].table
    modes, layers = table.recompute[places], table.recompute_layers[places]
    return [
        replace(part, table=replace(part.table, recompute=modes, recompute_layers=layers)) for part in splits
    ]


def _some_recomputed(table: LayoutTable, splits: list[tuple[int, ...]]) -> Ints:
    """Places of no recomputation, and of each mode some numbers of layers between the fewest and the most.

    Every layer recomputed saves memory, but the last one of a stage: then the backward begins with it. So the
    numbers at which memory can be least are among them.
    """
    ends = {layers - less for split in splits for layers in split for less in (0, 1)}
    modes, layers = table.recompute[:, 0, 0], table.recompute_layers[:, 0, 0]
    found = []
    for mode in np.unique(modes):
        own = np.flatnonzero(modes == mode)
        between = own[:: max(len(own) // BETWEEN, 1)]
        found.append(np.union1d(own[np.isin(layers[own], list(ends))], between))
    return np.concatenate(found)


def least_recomputed(table: LayoutTable, fits: Bools) -> tuple[LayoutTable, Bools]:
    """Of each mode no more layers than it takes to fit, as a grid [mode, sharding, row]; and what can fit.

    Below a number that does not fit, and that leaves each stage a layer, none does.
    """
    modes, layers = table.recompute[:, 0, 0], table.recompute_layers[:, 0, 0]
    kept = np.unique(modes)
    least, possible = [], []
    for mode in kept:
        own = modes == mode
        below = np.where(layers[own] < min(table.stage_layers), layers[own], 0)[:, None, None]
        least.append(np.max(np.where(fits[own], 0, below), axis=0) + int(mode > 0))
        possible.append(fits[own].any(axis=0))
    lighter = replace(table, recompute=kept[:, None, None], recompute_layers=np.stack(least))
    return lighter, np.stack(possible)


def _breaks(question: Question, table: LayoutTable, about_stages: bool) -> Bools:
    """Rows that cannot be, by the rules that depend on the split of the layers, or by all others."""
    broken = np.zeros(len(table), dtype=np.bool_)
    for rule in RULES:
        if rule.scope == "layout" and rule.about_stages == about_stages:
            broken = broken | rule.mask(question, table)
    return broken
