"""Peak bytes of every stage for a grid of layouts: the sums of memory_model.py, as few as they can be.

Same inventory, same moments, same bundles as `memory_table`; only the order of the additions differs. The
addends of a moment are added up shape by shape, those of many rows last, and what several moments share is
multiplied once. So a candidate costs two passes over its cell for each moment (an addition and a maximum).
Which moment it was is not kept: `memory_estimate` says that of the few layouts that are shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqplan.planner.activations import Floats
from seqplan.planner.choosing.layout_table import LayoutTable
from seqplan.planner.memory.bundle import Bundle
from seqplan.planner.memory.model_states import head_stage
from seqplan.planner.memory.stage_inventory import Inventory
from seqplan.planner.memory.stage_moments import Case, Conditional, Moment, stage_cases
from seqplan.planner.memory_model import (
    micro_batches_in_flight,
    overhead_bytes,
    stages_that_can_be_worst,
)
from seqplan.planner.question import Question


@dataclass(frozen=True, eq=False)
class PeakMemory:
    """Bytes for every cell of a table."""

    stages: tuple[int, ...]
    stage_allocated: tuple[Floats, ...]
    """Allocated bytes of each evaluated stage, of the table's shape."""
    overhead_bytes: Floats
    limit_bytes: float

    @cached_property
    def allocated_bytes(self) -> Floats:
        return reduce(np.maximum, self.stage_allocated)

    @cached_property
    def peak_bytes(self) -> Floats:
        return self.allocated_bytes + self.overhead_bytes

    @cached_property
    def fits(self) -> NDArray[np.bool_]:
        return self.peak_bytes <= self.limit_bytes


class StageMemories:
    """Allocated bytes of single stages, for the rows of one table in whichever split of the layers.

    Splits differ in a few stages only, so each stage that two of them share is added up once.
    """

    def __init__(self, question: Question, table: LayoutTable) -> None:
        self.inventory = Inventory(question, table)
        self._known: dict[tuple[int, int], Floats] = {}

    def allocated(self, table: LayoutTable, stage: int) -> Floats:
        """Of one stage; `table` is the one given or one that differs in stage_layers alone."""
        key = (stage, table.stage_layers[stage])
        if key not in self._known:
            in_flight = micro_batches_in_flight(table, stage)
            has_head, layers = stage == head_stage(table), table.stage_layers[stage]
            first = self.inventory.first_backwards(in_flight, layers)
            bundles = self.inventory.stage(stage, has_head, layers, first)
            cases = stage_cases(bundles, in_flight, table.num_microbatches, first)
            self._known[key] = _largest(cases.values(), table.shape)
        return self._known[key]


def peak_memory(question: Question, table: LayoutTable, shared: StageMemories | None = None) -> PeakMemory:
    """Peak memory of every stage that can be the worst; `shared`: with other splits of the same rows."""
    stages = stages_that_can_be_worst(table)
    memories = shared or StageMemories(question, table)
    allocated = [memories.allocated(table, stage) for stage in stages]
    worst = reduce(np.maximum, allocated)
    overhead = reduce(np.add, overhead_bytes(question, table, worst).values())
    limit = float(question.cluster.device.memory_bytes) * (1.0 - question.train.headroom_fraction)
    return PeakMemory(tuple(stages), tuple(allocated), overhead, limit)


def _largest(moments: Iterable[Moment], shape: tuple[int, ...]) -> Floats:
    """The largest of the moments' sums, cell by cell."""
    sums = _Sums()
    largest, scratch = np.zeros(shape), np.empty(shape)
    for moment in moments:
        condition, case = _unconditional(moment)
        parts = sums.of(case)
        if len(parts) == 1:
            total = parts[0]
        else:
            rest = reduce(np.add, parts[:-1])
            total = np.add(rest, parts[-1], out=scratch)
        if condition is not None:
            total = total * condition
        np.maximum(largest, total, out=largest)
    return largest


def _unconditional(moment: Moment) -> tuple[Any, Case]:
    """Its condition, None for always; and the moment without."""
    condition: Any = None
    while isinstance(moment, Conditional):
        condition = moment.condition if condition is None else condition * moment.condition
        moment = moment.moment
    return condition, moment


Sum = dict[tuple[int, ...], Any]
"""Bytes of several bundles together, one array for each shape that they come in."""


class _Sums:
    """The addends of one stage's moments, summed by shape. Moments begin alike, and share those sums."""

    def __init__(self) -> None:
        self._products: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
        self._begun: dict[tuple[tuple[int, int], ...], Sum] = {(): {}}

    def of(self, case: Case) -> list[Floats]:
        """The sums of one moment, smallest first."""
        keys = [self._product(count, bundle) for count, bundle in case if bundle.by_kind]
        shared = min(len(keys), SHARED_ADDENDS)
        while tuple(keys[:shared]) not in self._begun:
            shared -= 1
        total = self._begun[tuple(keys[:shared])]
        for place in range(shared, len(keys)):
            value = self._products[keys[place]][2]
            shape = np.shape(value)
            total = {**total, shape: total[shape] + value if shape in total else value}
            if place < SHARED_ADDENDS:
                self._begun[tuple(keys[: place + 1])] = total
        ordered = sorted(total.items(), key=lambda item: math.prod(item[0]))
        return [np.asarray(value) for _, value in ordered] or [np.zeros(1)]

    def _product(self, count: Any, bundle: Bundle) -> tuple[int, int]:
        key = (id(count), id(bundle))
        if key not in self._products:
            value = bundle.total if count is _ONE else np.asarray(count * bundle.total)
            self._products[key] = (count, bundle, value)  # holds both, so that no id is used again
        return key


SHARED_ADDENDS = 6
"""Sums of so many addends with which a moment begins are kept for the others: states, gradients, waiting."""

_ONE: Any = 1
"""The count of what is there once (stage_moments.stage_cases)."""
