"""Full estimates (every stage, every kind) of all rows of a table at once.

`memory_estimate` and `time_estimate` answer for one layout; a file of thousands of cases would pay their
cost for each. Here the rows of one table share it. The rows may differ in batch and GPU count, which enter
the formulas through columns only: `asked` gives each row's own question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from seqplan.planner.activations import Floats
from seqplan.planner.choosing.layout_table import LayoutTable
from seqplan.planner.memory.stage_moments import Moment
from seqplan.planner.memory_model import memory_table, overhead_bytes
from seqplan.planner.question import Question
from seqplan.planner.results import MEMORY_KINDS, TIME_KINDS, MemoryEstimate, StageMemory, TimeEstimate
from seqplan.planner.time_model import time_table
from seqplan.planner.timing.flops import model_flops_per_step
from seqplan.planner.timing.overlaps import time_notes


def memory_estimates(question: Question, table: LayoutTable) -> list[MemoryEstimate]:
    """Memory of every stage, for every row."""
    memory = memory_table(question, table, every_stage=True)
    by_stage = [
        _stage_rows(question, table, stage, [case for at, _, case in memory.cases if at == stage])
        for stage in memory.stages
    ]
    return [_worst_first(stages, memory.limit_bytes) for stages in zip(*by_stage, strict=True)]


def _worst_first(stages: tuple[StageMemory, ...], limit_bytes: float) -> MemoryEstimate:
    worst = max(stages, key=lambda stage: stage.peak_bytes)
    return MemoryEstimate(
        allocated_bytes=worst.allocated_bytes,
        overhead_bytes=worst.overhead_bytes,
        peak_bytes=worst.peak_bytes,
        limit_bytes=limit_bytes,
        worst_stage=worst.stage,
        stages=stages,
    )


def _stage_rows(question: Question, table: LayoutTable, stage: int, cases: list[Moment]) -> list[StageMemory]:
    """One stage of every row, each row at its own worst moment."""
    size = len(table)
    totals = np.stack([np.broadcast_to(_total(case), size) for case in cases])
    chosen = np.argmax(totals, axis=0)
    kinds = {kind: np.zeros(size) for kind in MEMORY_KINDS}
    for index in np.unique(chosen):
        rows = chosen == index
        found: dict[str, Any] = dict.fromkeys(MEMORY_KINDS, 0.0)
        for count, bundle in cases[index]:
            for kind, value in bundle.by_kind.items():
                found[kind] = found[kind] + count * value
        for kind, values in found.items():
            kinds[kind] = np.where(rows, values, kinds[kind])
    overheads = overhead_bytes(question, table, np.asarray(sum(kinds.values())))
    return [_stage_memory(stage, _row(kinds, row), _row(overheads, row)) for row in range(size)]


def _stage_memory(stage: int, by_kind: dict[str, float], overheads: dict[str, float]) -> StageMemory:
    allocated, overhead = sum(by_kind.values()), sum(overheads.values())
    return StageMemory(
        stage=stage,
        allocated_bytes=allocated,
        overhead_bytes=overhead,
        peak_bytes=allocated + overhead,
        by_kind=by_kind,
        overhead_by_kind=overheads,
    )


def _total(case: Moment) -> Any:
    total: Any = 0.0
    for count, bundle in case:
        if bundle.by_kind:
            total = total + count * bundle.total
    return total


def _row(columns: dict[str, Floats], row: int) -> dict[str, float]:
    return {name: float(values[row]) for name, values in columns.items()}


def time_estimates(
    question: Question, table: LayoutTable, asked: Sequence[Question], played: bool = True
) -> list[TimeEstimate]:
    """One step of every row; `played`: by event simulation, or in the search's closed form."""
    times = time_table(question, table, played=played)
    step_time_s, bubble = times.step_time_s, times.bubble_fraction
    estimates = []
    for row, own in enumerate(asked):
        train, seconds = own.train, float(step_time_s[row])
        flops = model_flops_per_step(own.model, train.seq_len, train.global_batch_size)
        estimates.append(
            TimeEstimate(
                step_time_s=seconds,
                tokens_per_s_per_gpu=train.global_batch_size * train.seq_len / (own.gpus * seconds),
                mfu=flops / (own.gpus * times.peak_flops_per_s * seconds),
                by_kind={kind: float(times.by_kind[kind][row]) for kind in TIME_KINDS},
                bubble_fraction=float(bubble[row]),
                notes=time_notes(own, table.row(row)),
            )
        )
    return estimates
