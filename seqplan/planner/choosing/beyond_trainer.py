"""What beats the pick with options that the chosen trainer does not have: the whole space, by bounds.

That space is a hundred times the trainer's own, and only what is faster than the pick matters. So time comes
before memory here, from coarse to fine, and each step is a lower bound of the next (planner test: the same
answer as without bounds):
1. a row (degrees, batch, attention) without recomputation, without the seconds of dp and optimizer, which
   sharding decides, without sends, and with the bubble of its schedule;
2. the row with each sharding under each schedule, still without recomputation, which only costs time;
3. what is still faster is costed in full, memory first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from seqplan.planner.activations import Floats
from seqplan.planner.choosing.layout_grid import Grid, candidate_grids
from seqplan.planner.choosing.layout_table import Bools, Ints, LayoutTable
from seqplan.planner.choosing.ranking import Leaders
from seqplan.planner.choosing.scan import lead, row_chunks
from seqplan.planner.layout import Layout
from seqplan.planner.layout_space import all_choices
from seqplan.planner.memory.model_states import head_stage
from seqplan.planner.memory.peak_memory import peak_memory
from seqplan.planner.question import Pins, Question
from seqplan.planner.rules.legality import RULES, sieve
from seqplan.planner.time_model import time_table
from seqplan.planner.timing.pipeline_time import Passes, pipeline_s
from seqplan.planner.timing.stage_time import StageTime

UNDECIDED = ("dp", "optimizer", "bubble", "pp")
"""Kinds of time that sharding and schedule decide."""

LEAST_GAIN = 0.005
"""A layout less than so much faster than the pick is not worth another trainer."""


def faster_elsewhere(question: Question, pins: Pins, pick_s: float, top: int) -> list[Layout]:
    """Layouts that fit and beat the pick's step time, but that the chosen trainer cannot run."""
    return _Beyond(question, pick_s * (1.0 - LEAST_GAIN), top).run(pins)


@dataclass(frozen=True, eq=False)
class _Bound:
    """Of the rows that are legal: seconds that they take at least, in whichever order of the mesh."""

    rows: Ints
    working_s: Floats
    """All but the bubble, of each order of the mesh."""
    microbatches: Floats
    passes: tuple[Passes, ...]
    """Of every stage, without what it sends: a schedule may hide that."""

    def faster_rows(self, schedule: str, chunks: int, overlap: bool, than_s: float) -> Ints:
        if not len(self.rows):
            return self.rows
        whole = pipeline_s(schedule, chunks, self.microbatches, self.passes, steps_overlap=overlap)
        distinct = {id(passes): passes[0] + passes[1] for passes in self.passes}
        longest = reduce(np.maximum, distinct.values())
        bubble = np.maximum(whole - self.microbatches * longest, 0.0)
        return self.rows[_least(self.working_s + bubble) < than_s]


class _Beyond:
    """The state of one search."""

    def __init__(self, question: Question, faster_than_s: float, top: int) -> None:
        self.question = question
        self.leaders = Leaders(top, faster_than_s)
        self._known: dict[tuple[object, ...], _Bound] = {}

    def run(self, pins: Pins) -> list[Layout]:
        for grid in candidate_grids(self.question, pins, all_choices(self.question)):
            if not _breaks(self.question, grid.table, ("schedule",)).all():
                self._by_sharding(grid, self._bound(grid))
        return self.leaders.layouts()

    def _bound(self, grid: Grid) -> _Bound:
        """Step 1; the same for all schedules that place the head on one stage."""
        key = (grid.table.pp, grid.table.stage_layers, head_stage(grid.table))
        if key not in self._known:
            bare = replace(grid, table=_bare(grid.table))
            others = tuple(rule.name for rule in RULES if rule.name != "schedule" and rule.scope == "layout")
            legal = ~_breaks(self.question, bare.table, others)
            rows = np.flatnonzero(legal)
            if len(rows):
                table = bare.in_orders(legal)[0]
                times = time_table(self.question, table)
                working = times.step_time_s - sum(times.by_kind[kind] for kind in UNDECIDED)
                passes = {stage: _passes(stage) for stage in times.stages}
                in_order = tuple(passes[stage] for stage in times.stages)
                count = table.num_microbatches.astype(np.float64)
                self._known[key] = _Bound(rows, working, count, in_order)
            else:
                self._known[key] = _Bound(rows, np.zeros(0), np.zeros(0), ())
        return self._known[key]

    def _by_sharding(self, grid: Grid, bound: _Bound) -> None:
        """Step 2: which cells [sharding, row] are fast enough without recomputation, in any order."""
        schedule, chunks = grid.table.schedule, grid.table.num_virtual_stages
        overlap = self.question.implementation.time.steps_overlap
        rows = bound.faster_rows(schedule, chunks, overlap, self.leaders.worst_s)
        if not len(rows):
            return
        part = grid.take(rows)
        none = np.zeros((1, 1, 1), dtype=np.int64)
        bare = replace(part, table=replace(part.table, recompute=none, recompute_layers=none))
        timed = bare.in_orders(np.ones(len(rows), dtype=np.bool_))[0]
        seconds = np.broadcast_to(time_table(self.question, timed).step_time_s, timed.shape)
        below = (seconds < self.leaders.worst_s).reshape(-1, *timed.shape[-2:]).any(axis=0)
        fast = below & (part.weight > 0)
        for chosen in row_chunks(part.table, np.flatnonzero(fast.any(axis=0))):
            self._in_full(part.take(chosen), fast[:, chosen])

    def _in_full(self, grid: Grid, fast: Bools) -> None:
        """Step 3."""
        sieved = sieve(self.question, grid.table)
        cells = np.broadcast_to(sieved.costable & ~sieved.runnable & fast, grid.table.shape)
        if cells.any():
            fits = cells & peak_memory(self.question, grid.table).fits
            if fits.any():
                lead(self.question, self.leaders, grid, fits)


def _breaks(question: Question, table: LayoutTable, names: tuple[str, ...]) -> Bools:
    """Rows that break one of the named rules."""
    broken = np.zeros(len(table), dtype=np.bool_)
    for rule in RULES:
        if rule.name in names:
            broken = broken | rule.mask(question, table)
    return broken


def _passes(stage: StageTime) -> Passes:
    durations = stage.durations("1f1b")
    return durations.forward_s, durations.backward_s, durations.weight_s


def _least(seconds: Floats) -> Floats:
    """Of each row the least over all leading axes."""
    return np.asarray(seconds.reshape(-1, seconds.shape[-1]).min(axis=0))


def _bare(table: LayoutTable) -> LayoutTable:
    """The rows of a grid as a flat table, without recomputation or chunks and at ZeRO 1.

    That stage communicates once a step only, so that no micro-batch's time has any of it.
    """
    none = np.zeros(len(table), dtype=np.int64)
    return replace(
        table,
        schedule=table.schedule if table.schedule in ("none", "zbv") else "1f1b",
        num_virtual_stages=1,
        recompute=none,
        recompute_layers=none,
        zero_stage=none + 1,
        zero_shard_size=table.dp * table.sp,
    )
