"""The candidates, as one grid of layouts for each pipeline: recompute x sharding x everything else.

Canonical: an option without effect is not a choice. With sp = 1 attention is plain (or rsa, when attention
probabilities are dropped), with tp = 1 tp_sequence_parallel is off, on one rank of dp x sp nothing can be
sharded, a shard of one rank is none, and axes of one rank have no place in the mesh.
A grid has cells that are no candidates (a shard size that does not divide this row's ranks); `weight` says
which, and in how many orders of the mesh the others stand.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from seqplan.planner.choosing.layout_table import (
    ATTENTIONS,
    KERNELS,
    Bools,
    Ints,
    LayoutTable,
    num_microbatches,
)
from seqplan.planner.layout import DEFAULT_MESH_ORDER, best_kernel
from seqplan.planner.layout_space import (
    Choices,
    attention_options,
    degree_triples,
    mesh_orders,
    micro_batch_sizes,
    pipeline_degrees,
    recompute_options,
    schedules,
    sharding_options,
    stage_splits,
)
from seqplan.planner.question import Pins, Question


@dataclass(frozen=True, eq=False)
class Grid:
    """Cells [recompute, sharding, row] of one pipeline."""

    table: LayoutTable
    """In the first of the orders."""
    weight: Ints
    """[sharding, row]: in how many orders a cell is a candidate; 0: it is none."""
    orders: tuple[tuple[tuple[str, ...], Bools], ...]
    """Each order of the mesh, and the rows for which it is not the same as one before."""

    def count(self, cells: ArrayLike) -> int:
        """Candidates in a mask that broadcasts to the grid."""
        mask = np.asarray(cells)
        missing = 1 if mask.ndim == 3 and mask.shape[0] > 1 else self.table.shape[0]
        return int((mask * self.weight).sum()) * missing

    def in_orders(self, rows: Bools) -> tuple[LayoutTable, tuple[tuple[tuple[str, ...], Bools], ...]]:
        """Some rows as one table in all the orders that any of them has, and each order's own of them."""
        orders = tuple((order, own[rows]) for order, own in self.orders if own[rows].any())
        names = [order for order, _ in orders]
        return replace(self.table.take(rows), mesh_order=names[0], more_orders=tuple(names[1:])), orders

    def example(self, cells: ArrayLike) -> LayoutTable:
        """The first candidate of a mask, as a table of one row."""
        mask = np.broadcast_to(np.asarray(cells) & (self.weight > 0), self.table.shape)
        return self.table.flat([int(np.argmax(mask))])

    def take(self, rows: ArrayLike) -> Grid:
        """Some rows."""
        chosen = np.asarray(rows)
        orders = tuple((order, own[chosen]) for order, own in self.orders)
        return Grid(self.table.take(chosen), self.weight[..., chosen], orders)


def candidate_grids(question: Question, pins: Pins, has: Choices) -> Iterator[Grid]:
    """Every candidate, one grid for each pipeline (pp, its split and schedule)."""
    kernels = [
        KERNELS.index(pins.kernel or best_kernel(question, question.precision, name)) for name in ATTENTIONS
    ]
    orders = mesh_orders(question, pins)
    for pp in pipeline_degrees(question, pins):
        ranks = question.gpus // pp
        rows = _rows(question, ranks, pins, has)
        if not len(rows["dp"]):
            continue
        distinct = tuple(_distinct_rows(orders, pp, rows))
        weight, sharding = _sharding(ranks, rows, pins, has)
        rows["kernel"] = np.array(kernels, dtype=np.int64)[rows["attention"]]
        for layers in stage_splits(question, pp, pins):
            options = np.array(recompute_options(layers, pins, has), dtype=np.int64).reshape(-1, 2)
            recompute, recompute_layers = options.T[:, :, None, None]
            for schedule, chunks in schedules(question, pp, layers, pins, has):
                columns: dict[str, Any] = {**sharding, **rows}
                table = LayoutTable(
                    pp=pp,
                    stage_layers=layers,
                    schedule=schedule,
                    num_virtual_stages=chunks,
                    precision=question.precision,
                    mesh_order=orders[0],
                    recompute=recompute,
                    recompute_layers=recompute_layers,
                    **columns,
                )
                yield Grid(table, weight * sum(own.astype(np.int64) for _, own in distinct), distinct)


def candidate_tables(question: Question, pins: Pins, has: Choices) -> Iterator[LayoutTable]:
    """The same candidates as flat tables, one for each pipeline and order of the mesh."""
    for grid in candidate_grids(question, pins, has):
        for order, rows in grid.orders:
            cells = np.broadcast_to((grid.weight > 0) & rows, grid.table.shape)
            if cells.any():
                yield replace(grid.table.flat(cells), mesh_order=order)


def _rows(question: Question, ranks: int, pins: Pins, has: Choices) -> dict[str, Ints]:
    """Degrees and batch of one stage's ranks, crossed with attention and tp_sequence_parallel."""
    batch = question.train.global_batch_size
    over_tp: tuple[bool, ...] = has.tp_sequence_parallel
    if pins.tp_sequence_parallel is not None:
        over_tp = (pins.tp_sequence_parallel,)
    rows = []
    for dp, tp, sp in degree_triples(ranks, pins):
        kinds = attention_options(question, sp, pins, has)
        splits = over_tp if tp > 1 or pins.tp_sequence_parallel is not None else (False,)
        for micro, (kind, degree), split in itertools.product(
            micro_batch_sizes(batch, dp, pins), kinds, splits
        ):
            rows.append((dp, tp, sp, micro, ATTENTIONS.index(kind), degree, int(split)))
    names = ("dp", "tp", "sp", "micro_batch_size", "attention", "ulysses_degree", "tp_sequence_parallel")
    columns = dict(zip(names, np.array(rows, dtype=np.int64).reshape(-1, len(names)).T, strict=True))
    columns["num_microbatches"] = num_microbatches(batch, columns["dp"], columns["micro_batch_size"])
    return columns


def _sharding(ranks: int, rows: dict[str, Ints], pins: Pins, has: Choices) -> tuple[Ints, dict[str, Ints]]:
    """Which cells [sharding, row] are candidates, and the columns zero_stage and zero_shard_size."""
    stage, size = np.array(sharding_options(ranks, pins, has), dtype=np.int64).reshape(-1, 2).T[:, :, None]
    over = rows["dp"] * rows["sp"]
    valid = np.ones((len(stage), len(over)), dtype=np.bool_)
    if pins.zero_shard_size is None:
        valid &= (size == 0) | ((over % np.maximum(size, 1) == 0) & (size < over))
    if pins.zero_stage is None:
        valid &= (over > 1) | (stage == min(has.zero_stages))
    return valid.astype(np.int64), {"zero_stage": stage, "zero_shard_size": np.where(size > 0, size, over)}


def _distinct_rows(
    orders: tuple[tuple[str, ...], ...], pp: int, rows: dict[str, Ints]
) -> Iterator[tuple[tuple[str, ...], Bools]]:
    """For each order the rows where it differs from those before: axes of one rank do not count."""
    if len(orders) == 1:
        yield orders[0], np.ones(len(rows["dp"]), dtype=np.bool_)
        return
    used = {axis: rows[axis] > 1 for axis in DEFAULT_MESH_ORDER if axis != "pp"}
    used["pp"] = np.full(len(rows["dp"]), pp > 1)
    seen: list[Ints] = []
    for order in orders:
        # The order of the axes in use, as a number: one digit an axis.
        code = np.zeros(len(rows["dp"]), dtype=np.int64)
        for place, axis in enumerate(order):
            code = np.where(used[axis], code * 8 + DEFAULT_MESH_ORDER.index(axis) + 1, code)
            assert place < 8
        fresh = np.ones(len(code), dtype=np.bool_)
        for earlier in seen:
            fresh &= code != earlier
        seen.append(code)
        yield order, fresh
