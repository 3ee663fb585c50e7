"""Memory of every pipeline stage's fullest rank, by kind; the worst stage decides.

A rank's peak falls into one of a few moments of a step: the forward or backward of its last layer or of the
head while all its other micro-batches wait, the end of a backward when all gradients exist, or the
optimizer. Each moment is a sum of bundles of the trainer's inventory (activations.py), so the peak is
    states + gradients + (micro-batches in flight - 1) x kept + what the one in hand keeps + working tensors
(SimuMax's form), evaluated at every moment and the largest taken. Gradients count from the first backward
on: a stage whose micro-batches are all in flight has none yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqplan.planner.activations import Floats
from seqplan.planner.choosing.layout_table import LayoutTable, from_layout
from seqplan.planner.layout import Layout
from seqplan.planner.memory.model_states import head_stage
from seqplan.planner.memory.stage_inventory import Inventory
from seqplan.planner.memory.stage_moments import Moment, stage_cases
from seqplan.planner.question import Question
from seqplan.planner.results import MEMORY_KINDS, MemoryEstimate, StageMemory
from seqplan.planner.virtual_stages import chunk_layers, layers_in_flight


def micro_batches_in_flight(table: LayoutTable, stage: int) -> Floats:
    """Micro-batches whose activations stage holds at once, in units of all its layers.

    1F1B: min(p - i, m) (Narayanan et al. 2104.04473); interleaved: chunks warmed up as in Megatron-LM, of
    1/v of the layers each, or as virtual_stages.py counts them where chunks differ; gpipe: m. Zero bubbles
    (Qi et al. 2401.10241, table 2 and section 6), a micro-batch counted whole until its weight gradients are
    made: zbh1 and zbv p on every stage, zbh2 2 p - 1.
    """
    microbatches = table.num_microbatches.astype(np.float64)
    if table.schedule == "gpipe":
        return microbatches
    if table.schedule in ("zbh1", "zbv"):
        return np.minimum(table.pp, microbatches)
    if table.schedule == "zbh2":
        return np.minimum(2 * table.pp - 1, microbatches)
    if table.schedule == "interleaved":
        return _interleaved_in_flight(table, stage)
    return np.minimum(table.pp - stage, microbatches)


def _interleaved_in_flight(table: LayoutTable, stage: int) -> Floats:
    chunks, layers = table.num_virtual_stages, table.stage_layers[stage]
    if layers % chunks == 0 or layers == 0:
        warm_up = 2 * (table.pp - 1 - stage) + (chunks - 1) * table.pp + 1
        return np.minimum(warm_up, table.num_microbatches * chunks) / chunks
    counts, places = np.unique(table.num_microbatches, return_inverse=True)
    sizes = chunk_layers(table.stage_layers, stage, chunks)
    held = [layers_in_flight(sizes, stage, table.pp, int(count)) / layers for count in counts]
    return np.array(held)[places].reshape(table.num_microbatches.shape)


def stages_that_can_be_worst(table: LayoutTable) -> list[int]:
    """Both ends and, of the middle stages of equal layer count, the first: it has most in flight."""
    stages = {0, table.pp - 1}
    seen: set[int] = set()
    for stage in range(1, table.pp - 1):
        if table.stage_layers[stage] not in seen:
            seen.add(table.stage_layers[stage])
            stages.add(stage)
    return sorted(stages)


def _case_total(case: Moment) -> Any:
    total: Any = 0.0
    for count, bundle in case:
        if bundle.by_kind:
            total = total + count * bundle.total
    return total


def _case_by_kind(case: Moment, size: int) -> dict[str, Floats]:
    totals = {kind: np.zeros(size) for kind in MEMORY_KINDS}
    for count, bundle in case:
        for kind, value in bundle.by_kind.items():
            totals[kind] = totals[kind] + count * value
    return totals


@dataclass(frozen=True, eq=False)
class MemoryTable:
    """Memory of the worst evaluated stage, for every row of a LayoutTable."""

    stages: tuple[int, ...]
    cases: tuple[tuple[int, str, Moment], ...]
    """(stage, moment, bundles) of everything evaluated."""
    stage_allocated: tuple[Floats, ...]
    """Allocated bytes of each evaluated stage."""
    chosen: NDArray[np.int64]
    """Index into `cases` of the worst stage's worst moment."""
    allocated_bytes: Floats
    overhead: dict[str, Floats]
    limit_bytes: float

    @cached_property
    def overhead_bytes(self) -> Floats:
        return np.asarray(sum(self.overhead.values()))

    @cached_property
    def peak_bytes(self) -> Floats:
        return self.allocated_bytes + self.overhead_bytes

    @cached_property
    def fits(self) -> NDArray[np.bool_]:
        return self.peak_bytes <= self.limit_bytes

    @cached_property
    def worst_stage(self) -> NDArray[np.int64]:
        return np.array([stage for stage, _, _ in self.cases], dtype=np.int64)[self.chosen]

    @cached_property
    def by_kind(self) -> dict[str, Floats]:
        """Allocated bytes of the worst stage at its worst moment, by MEMORY_KINDS."""
        size = len(self.chosen)
        result = {kind: np.zeros(size) for kind in MEMORY_KINDS}
        for index in np.unique(self.chosen):
            rows = self.chosen == index
            for kind, values in _case_by_kind(self.cases[index][2], size).items():
                result[kind] = np.where(rows, values, result[kind])
        return result


def memory_table(question: Question, table: LayoutTable, every_stage: bool = False) -> MemoryTable:
    """Peak memory of every row; `every_stage` evaluates also stages that cannot be the worst."""
    inventory = Inventory(question, table)
    stages = list(range(table.pp)) if every_stage else stages_that_can_be_worst(table)
    cases: list[tuple[int, str, Moment]] = []
    totals: list[Floats] = []
    stage_allocated: list[Floats] = []
    for stage in stages:
        in_flight = micro_batches_in_flight(table, stage)
        first = inventory.first_backwards(in_flight, table.stage_layers[stage])
        bundles = inventory.stage(stage, has_head=stage == head_stage(table), first_backward=first)
        start = len(totals)
        for moment, case in stage_cases(bundles, in_flight, table.num_microbatches, first).items():
            cases.append((stage, moment, case))
            totals.append(np.broadcast_to(_case_total(case), len(table)))
        stage_allocated.append(np.max(totals[start:], axis=0))
    stacked = np.stack(totals)
    chosen = np.argmax(stacked, axis=0)
    allocated = stacked[chosen, np.arange(len(table))]
    return MemoryTable(
        stages=tuple(stages),
        cases=tuple(cases),
        stage_allocated=tuple(stage_allocated),
        chosen=chosen,
        allocated_bytes=allocated,
        overhead=overhead_bytes(question, table, allocated),
        limit_bytes=float(question.cluster.device.memory_bytes) * (1.0 - question.train.headroom_fraction),
    )


def overhead_bytes(question: Question, table: LayoutTable, allocated: Floats) -> dict[str, Floats]:
    """What is not a tensor: device context, buffers of the communicators, losses of the allocator."""
    cluster = question.cluster
    lost = (
        0.0 if question.implementation.counts_cached_blocks else float(cluster.device.fragmentation_fraction)
    )
    return {
        "context": np.full(len(table), float(cluster.device.context_bytes)),
        "communicators": communicators(table) * float(cluster.communicator_bytes),
        "fragmentation": lost * allocated,
    }


def communicators(table: LayoutTable) -> Floats:
    """Process groups of more than one rank: one an axis, the one of dp and sp together, and where sp splits
    the heads in part, its two factors."""
    axes = sum((table.degree(axis) > 1).astype(np.float64) for axis in table.mesh_order)
    factors = (table.ulysses_degree > 1) & (table.ring_degree > 1)
    return np.asarray(axes + factors + ((table.dp > 1) & (table.sp > 1)))


def memory_estimate(question: Question, layout: Layout) -> MemoryEstimate:
    """Memory of every stage of one layout."""
    table = from_layout(layout, question.train)
    memory = memory_table(question, table, every_stage=True)
    stages: list[StageMemory] = []
    for stage, allocated in zip(memory.stages, memory.stage_allocated, strict=True):
        own = [case for at, _, case in memory.cases if at == stage]
        worst = max(own, key=lambda case: float(np.max(_case_total(case))))
        by_kind = {kind: float(value[0]) for kind, value in _case_by_kind(worst, 1).items()}
        overhead = {k: float(v[0]) for k, v in overhead_bytes(question, table, allocated).items()}
        stages.append(
            StageMemory(
                stage=stage,
                allocated_bytes=sum(by_kind.values()),
                overhead_bytes=sum(overhead.values()),
                peak_bytes=sum(by_kind.values()) + sum(overhead.values()),
                by_kind=by_kind,
                overhead_by_kind=overhead,
            )
        )
    top = max(stages, key=lambda s: s.peak_bytes)
    return MemoryEstimate(
        allocated_bytes=top.allocated_bytes,
        overhead_bytes=top.overhead_bytes,
        peak_bytes=top.peak_bytes,
        limit_bytes=memory.limit_bytes,
        worst_stage=top.stage,
        stages=tuple(stages),
    )
