"""Peak bytes of every stage for a grid of layouts: the sums of memory_model.py, as few as they can be.

Same inventory, same moments, same bundles as `memory_table`; only the order of the additions differs. The
addends of a moment are added up shape by shape, those of many rows last, and what several moments share is
multiplied once. So a candidate costs two passes over its cell for each moment (an addition and a maximum).
Which moment it was is not kept: `memory_estimate` says that of the few layouts that are shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqplan.planner.activations import Floats
from seqplan.planner.choosing.layout_table import LayoutTable
from seqplan.planner.memory.model_states import head_stage
from seqplan.planner.memory.stage_inventory import Inventory
from seqplan.planner.memory.stage_moments import Case, stage_cases
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


def peak_memory(question: Question, table: LayoutTable) -> PeakMemory:
    """Peak memory of every stage that can be the worst."""
    inventory = Inventory(question, table)
    stages = stages_that_can_be_worst(table)
    keeps = question.implementation.gradients_between_steps
    allocated = []
    for stage in stages:
        in_flight = micro_batches_in_flight(table, stage)
        all_started: Any = 0.0 if keeps else (in_flight >= table.num_microbatches).astype(np.float64)
        bundles = inventory.stage(stage, has_head=stage == head_stage(table))
        allocated.append(_largest(stage_cases(bundles, in_flight, all_started).values(), table.shape))
    worst = reduce(np.maximum, allocated)
    overhead = reduce(np.add, overhead_bytes(question, table, worst).values())
    limit = float(question.cluster.device.memory_bytes) * (1.0 - question.train.headroom_fraction)
    return PeakMemory(tuple(stages), tuple(allocated), overhead, limit)


def _largest(cases: Any, shape: tuple[int, ...]) -> Floats:
    """The largest of the moments' sums, cell by cell."""
    products: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
    largest, scratch = np.zeros(shape), np.empty(shape)
    for case in cases:
        parts = _parts(case, products)
        if len(parts) == 1:
            total = parts[0]
        else:
            rest = reduce(np.add, parts[:-1])
            total = np.add(rest, parts[-1], out=scratch)
        np.maximum(largest, total, out=largest)
    return largest


def _parts(case: Case, products: dict[tuple[int, int], tuple[Any, Any, Any]]) -> list[Floats]:
    """The addends of one moment, summed by shape, smallest first; all moments share `products`."""
    by_shape: dict[tuple[int, ...], Any] = {}
    for count, bundle in case:
        if not bundle.by_kind:
            continue
        key = (id(count), id(bundle))
        if key not in products:
            value = bundle.total if count is _ONE else np.asarray(count * bundle.total)
            products[key] = (count, bundle, value)  # holds both, so that no id is used again
        value = products[key][2]
        shape = np.shape(value)
        by_shape[shape] = by_shape[shape] + value if shape in by_shape else value
    ordered = sorted(by_shape.items(), key=lambda item: int(np.prod(item[0])))
    return [np.asarray(value) for _, value in ordered] or [np.zeros(1)]


_ONE: Any = 1
"""The count of what is there once (stage_moments.stage_cases)."""
