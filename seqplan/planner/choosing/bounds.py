"""Seconds that a row of a grid takes at least, however its layers are split, recomputed and sharded.

Stages share the work of a step in whatever way, so the slowest of them works for no less than their mean.
What a micro-batch costs without recomputation and without dp is the same in every split; recomputation, dp
and the optimizer only add to it. And what a pipeline of equal stages waits is near the least that any waits.
One evaluation serves all pipelines of a pp (test_search_scale.py: the same answer as without).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seqplan.planner.activations import Floats
from seqplan.planner.choosing.layout_grid import Grid
from seqplan.planner.choosing.layout_table import Ints, LayoutTable
from seqplan.planner.question import Question
from seqplan.planner.time_model import time_table
from seqplan.planner.timing.pipeline_time import Passes, pipeline_s

WAITING_SHARE = 0.9
"""Of what a pipeline of equal stages waits, what the bound counts: where stages are unequal the slowest works
for more than their mean, but the closed form of its waiting is near the least, not exactly above it."""


@dataclass(frozen=True, eq=False)
class RowBounds:
    """What a micro-batch costs the mean stage at least, of each row in each order of the mesh."""

    passes: Passes
    microbatches: Floats
    steps_overlap: bool
    waits: bool
    """False where ranks share cores: who waits leaves them to others."""

    def least_s(self, table: LayoutTable) -> Floats:
        """Of each row the least seconds in any order, under the schedule of a table of the same rows."""
        return _least_of_orders(self._busy_s() + self._waiting_s(table))

    def least_between_s(self, table: LayoutTable, smaller: Ints, larger: Ints) -> Floats:
        """The same of micro-batch sizes between those of two rows that are alike in all else."""
        return _least_of_orders(self._busy_s()[..., larger] + self._waiting_s(table)[..., smaller])

    def _busy_s(self) -> Floats:
        return np.asarray(self.microbatches * (self.passes[0] + self.passes[1]))

    def _waiting_s(self, table: LayoutTable) -> Floats:
        busy = self._busy_s()
        if not self.waits or table.pp == 1:
            return np.zeros_like(busy)
        stages, chunks = (self.passes,) * table.pp, table.num_virtual_stages
        overlap = self.steps_overlap
        whole = pipeline_s(table.schedule, chunks, self.microbatches, stages, steps_overlap=overlap)
        return np.asarray(WAITING_SHARE * np.maximum(whole - busy, 0.0))


def _least_of_orders(seconds: Floats) -> Floats:
    return np.asarray(seconds.reshape(-1, seconds.shape[-1]).min(axis=0))


def row_bounds(question: Question, grid: Grid) -> RowBounds:
    """The bounds of a grid's rows, all of which can be costed."""
    table, rows = grid.table, np.ones(len(grid.table), dtype=np.bool_)
    bare = replace(grid, table=bare_rows(table))
    stages = time_table(question, bare.in_orders(rows)[0]).stages
    means: list[Any] = [np.zeros(len(table))] * 3
    for stage, count in Counter(stages).items():
        # Sends may be hidden, and dp depends on sharding and overlaps.
        forward, backward, weight = stage.passes
        sent = 0.5 * stage.by_kind["pp"]
        passes = (forward - sent, backward - sent - stage.by_kind["dp"], weight)
        means = [mean + count / table.pp * each for mean, each in zip(means, passes, strict=True)]
    costs, shared = question.implementation.time, question.cluster.cores_per_node is not None
    microbatches = table.num_microbatches.astype(np.float64)
    return RowBounds((means[0], means[1], means[2]), microbatches, costs.steps_overlap, waits=not shared)


def bare_rows(table: LayoutTable) -> LayoutTable:
    """The rows of a grid as a flat table, without recomputation or chunks and at ZeRO 1."""
    none = np.zeros(len(table), dtype=np.int64)
    return replace(
        table,
        schedule="none" if table.pp == 1 else "1f1b",
        num_virtual_stages=1,
        recompute=none,
        recompute_layers=none,
        zero_stage=none + 1,
        zero_shard_size=table.dp * table.sp,
    )
