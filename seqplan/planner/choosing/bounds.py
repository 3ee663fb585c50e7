"""Seconds that a row of a grid takes at least, however its layers are split, recomputed and sharded.

Stages share the work of a step in whatever way, so the slowest of them works for no less than their mean.
What a micro-batch costs without recomputation and without dp is the same in every split; recomputation, dp
and the optimizer only add to it. And a pipeline without zero bubbles fills and drains through p - 1 other
stages. One such bound serves all pipelines of a pp (test_search_scale.py: the same answer as without).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from seqplan.planner.activations import Floats
from seqplan.planner.choosing.layout_grid import Grid
from seqplan.planner.choosing.layout_table import LayoutTable
from seqplan.planner.question import Question
from seqplan.planner.time_model import time_table

FILLING_SHARE = 0.9
"""Of the time to fill and drain a pipeline of equal stages, what the bound counts: the closed form of unequal
stages stays within 2 % of an event simulation, not exactly above this one."""

FILLED = ("1f1b", "interleaved", "gpipe")
"""Schedules that wait while the pipeline fills and drains."""


@dataclass(frozen=True, eq=False)
class RowBounds:
    """Of each row the least seconds, in whichever order of the mesh."""

    busy_s: Floats
    filling_s: Floats
    """Of a pipeline without chunks."""

    def least_s(self, table: LayoutTable) -> Floats:
        """Under the schedule of a table of the same rows and the same pp."""
        if table.schedule in FILLED:
            return self.busy_s + self.filling_s / table.num_virtual_stages
        return self.busy_s


def row_bounds(question: Question, grid: Grid) -> RowBounds:
    """The bounds of a grid's rows, all of which can be costed."""
    table, rows = grid.table, np.ones(len(grid.table), dtype=np.bool_)
    bare = replace(grid, table=bare_rows(table))
    stages = time_table(question, bare.in_orders(rows)[0]).stages
    # Sends may be hidden, and dp depends on sharding and overlaps.
    distinct = Counter(stages)
    work = sum(
        count * (stage.total - stage.by_kind["pp"] - stage.by_kind["dp"]) for stage, count in distinct.items()
    )
    mean = np.broadcast_to(work / table.pp, (*np.shape(work)[:-1], len(table)))
    mean = mean.reshape(-1, len(table)).min(axis=0)
    return RowBounds(mean * table.num_microbatches, FILLING_SHARE * mean * (table.pp - 1))


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
