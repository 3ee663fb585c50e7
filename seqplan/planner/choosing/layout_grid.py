"""The candidates, as one grid of layouts for each pipeline: recompute x sharding x everything else.

Canonical: an option without effect is not a choice. With sp = 1 attention is plain (or rsa, when attention
probabilities are dropped), with tp = 1 tp_sequence_parallel is off, on one rank of dp x sp nothing can be
sharded, a shard of one rank is none, and axes of one rank have no place in the mesh.
A grid has cells that are no candidates (a shard size that does not divide this row's ranks); `weight` says
which, and in how many orders of the mesh the others stand.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

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
from seqplan.planner.layout import DEFAULT_MESH_ORDER
from seqplan.planner.layout_defaults import best_kernel
from seqplan.planner.layout_space import (
    Choices,
    attention_options,
    degree_triples,
    mesh_orders,
    micro_batch_sizes,
    pipeline_degrees,
    pipelines,
    recompute_options,
    sharding_options,
)
from seqplan.planner.question import Pins, Question


@dataclass(frozen=True, eq=False)
class Grid:
    """Cells [recompute, sharding, row] of one pipeline."""

    table: LayoutTable
    """In the first of the orders, and of the splits."""
    weight: Ints
    """[sharding, row]: in how many orders a cell is a candidate; 0: it is none."""
    orders: tuple[tuple[tuple[str, ...], Bools], ...]
    """Each order of the mesh, and the rows for which it is not the same as one before."""
    splits: tuple[tuple[int, ...], ...]
    """Ways to lay the layers on the stages, with the same longest stage; all cells are there in each."""
    evenly: bool
    """These splits are the first of this pipeline, the even one among them."""

    def in_split(self, layers: tuple[int, ...]) -> Grid:
        """The cells of one split."""
        return replace(self, table=replace(self.table, stage_layers=layers), splits=(layers,))

    def each_split(self) -> Iterator[Grid]:
        """One split after the other."""
        return (self.in_split(layers) for layers in self.splits)

    def count(self, cells: ArrayLike) -> int:
        """Candidates of one split in a mask that broadcasts to the grid."""
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

    def of_shardings(self, places: Ints) -> Grid:
        """Some of the shardings."""
        stage, size = self.table.zero_stage, self.table.zero_shard_size
        table = replace(self.table, zero_stage=stage[places], zero_shard_size=size[places])
        return replace(self, table=table, weight=self.weight[places])

    def take(self, rows: ArrayLike) -> Grid:
        """Some rows."""
        chosen = np.asarray(rows)
        orders = tuple((order, own[chosen]) for order, own in self.orders)
        table, weight = self.table.take(chosen), self.weight[..., chosen]
        return replace(self, table=table, weight=weight, orders=orders)


Sizes = Callable[[int, int, int, int], tuple[int, ...]]
"""Micro-batch sizes of (pp, dp, tp, sp)."""


def candidate_grids(
    question: Question,
    pins: Pins,
    has: Choices,
    sizes: Sizes | None = None,
    splits_of: Callable[[Question, int, Pins], list[tuple[int, ...]]] | None = None,
) -> Iterator[Grid]:
    """Every candidate, a grid for each pipeline (pp, schedule, its longest stage); even ones come first.

    `sizes`, `splits_of`: instead of the micro-batch sizes and the splits of the layers of layout_space.py.
    """
    kernels = [
        KERNELS.index(pins.kernel or best_kernel(question, question.precision, name)) for name in ATTENTIONS
    ]
    orders = mesh_orders(question, pins)
    later = []
    for pp in pipeline_degrees(question, pins):
        ranks = question.gpus // pp
        rows = _rows(question, ranks, pins, has, None if sizes is None else partial(sizes, pp))
        if not len(rows["dp"]):
            continue
        distinct = tuple(_distinct_rows(orders, pp, rows))
        weight, columns = _sharding(ranks, rows, pins, has)
        weight = weight * sum(own.astype(np.int64) for _, own in distinct)
        columns.update(rows, kernel=np.array(kernels, dtype=np.int64)[rows["attention"]])
        families: dict[tuple[int, str, int], list[tuple[int, ...]]] = {}
        splits = None if splits_of is None else splits_of(question, pp, pins)
        for schedule, chunks, layers in pipelines(question, pp, pins, has, splits):
            families.setdefault((max(layers, default=0), schedule, chunks), []).append(layers)
        first = next(iter(families), (0, "", 0))[0]
        for (longest, schedule, chunks), alike in families.items():
            options = np.array(recompute_options(longest, pins, has), dtype=np.int64).reshape(-1, 2)
            recompute, recompute_layers = options.T[:, :, None, None]
            table = LayoutTable(
                pp=pp,
                stage_layers=alike[0],
                schedule=schedule,
                num_virtual_stages=chunks,
                precision=question.precision,
                mesh_order=orders[0],
                recompute=recompute,
                recompute_layers=recompute_layers,
                **columns,  # type: ignore[arg-type]  # more_orders is none of them
            )
            grid = Grid(table, weight, distinct, tuple(alike), evenly=longest == first)
            if grid.evenly:
                yield grid
            else:
                later.append(grid)
    yield from later


def candidate_tables(question: Question, pins: Pins, has: Choices) -> Iterator[LayoutTable]:
    """The same candidates as flat tables, one for each pipeline, split and order of the mesh."""
    for grids in candidate_grids(question, pins, has):
        for grid, (order, rows) in itertools.product(grids.each_split(), grids.orders):
            cells = np.broadcast_to((grid.weight > 0) & rows, grid.table.shape)
            if cells.any():
                yield replace(grid.table.flat(cells), mesh_order=order)


def _rows(
    question: Question,
    ranks: int,
    pins: Pins,
    has: Choices,
    sizes: Callable[[int, int, int], tuple[int, ...]] | None,
) -> dict[str, Ints]:
    """Degrees and batch of one stage's ranks, crossed with attention and tp_sequence_parallel."""
    batch = question.train.global_batch_size
    over_tp: tuple[bool, ...] = has.tp_sequence_parallel
    if pins.tp_sequence_parallel is not None:
        over_tp = (pins.tp_sequence_parallel,)
    rows = []
    for dp, tp, sp in degree_triples(ranks, pins):
        micros = micro_batch_sizes(batch, dp, pins) if sizes is None else sizes(dp, tp, sp)
        if not micros:
            continue
        kinds = attention_options(question, sp, pins, has)
        splits = over_tp if tp > 1 or pins.tp_sequence_parallel is not None else (False,)
        for micro, (kind, degree), split in itertools.product(micros, kinds, splits):
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
