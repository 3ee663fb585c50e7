"""LayoutTable: many layouts as columns, so that one formula explains one plan and scores a million.

All rows of a table share the pipeline (stages, schedule, chunks), precision and mesh order, which are plain
scalars; everything else is an int64 column. Names of a choice (`recompute`, `attention`, `kernel`) are stored
as their place in the tuples below. Optional fields are resolved to numbers: a formula never meets a None.

Columns need not be of equal length, only of shapes that broadcast: a table may be a grid, with choices that
few formulas ask for (recompute, ZeRO) on leading axes. What does not depend on them is then computed once
for all of them, by numpy's own rules and without a word in any formula. The last axis is always `len(table)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqplan.planner.layout import AXES, Attention, Kernel, Layout, Recompute
from seqplan.planner.train_spec import TrainSpec

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

RECOMPUTES: tuple[str, ...] = get_args(Recompute)
ATTENTIONS: tuple[str, ...] = get_args(Attention)
KERNELS: tuple[str, ...] = get_args(Kernel)

COLUMNS: tuple[str, ...] = (
    *(axis for axis in AXES if axis != "pp"),
    "micro_batch_size",
    "num_microbatches",
    "zero_stage",
    "zero_shard_size",
    "recompute",
    "recompute_layers",
    "attention",
    "ulysses_degree",
    "kernel",
    "tp_sequence_parallel",
)


@dataclass(frozen=True, eq=False)
class LayoutTable:
    """Layouts of one pipeline. Flat: every column of COLUMNS has the same length n; or a grid, see above."""

    pp: int
    stage_layers: tuple[int, ...]
    schedule: str
    num_virtual_stages: int
    precision: str
    mesh_order: tuple[str, ...]
    dp: Ints
    tp: Ints
    sp: Ints
    micro_batch_size: Ints
    num_microbatches: Ints
    zero_stage: Ints
    zero_shard_size: Ints
    """Ranks of dp x sp that share the states; dp * sp where the layout says None."""
    recompute: Ints
    recompute_layers: Ints
    """Layers of a stage at most (a shorter stage recomputes all of its own); 0 where recompute is none."""
    attention: Ints
    ulysses_degree: Ints
    kernel: Ints
    tp_sequence_parallel: Ints
    more_orders: tuple[tuple[str, ...], ...] = ()
    """Further orders of the mesh, after `mesh_order`: an axis of their own in front of a grid's three."""

    def __post_init__(self) -> None:
        assert self.shape[-1] == len(self.dp), "columns of unequal length"

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """(n,) of a flat table; of a grid its leading axes too."""
        orders = ((1 + len(self.more_orders), 1, 1, 1),) if self.more_orders else ()
        return np.broadcast_shapes(*(getattr(self, name).shape for name in COLUMNS), *orders)

    @cached_property
    def groups(self) -> dict[Any, Any]:
        """Where the groups of ranks lie, by nodes and axes: collectives.py finds out once for a table."""
        return {}

    @cached_property
    def parameters(self) -> list[tuple[Any, Any, Any]]:
        """Model, trainer and their RankParameters: model_states.py finds out once for a table."""
        return []

    def __len__(self) -> int:
        return self.shape[-1]

    def degree(self, axis: str) -> Ints:
        """The degree of one axis of AXES as a column; pp is the same in every row."""
        if axis == "pp":
            return np.full(len(self), self.pp, dtype=np.int64)
        return cast(Ints, getattr(self, axis))

    @property
    def world_size(self) -> Ints:
        product = np.ones(len(self), dtype=np.int64)
        for axis in AXES:
            product = product * self.degree(axis)
        return product

    @property
    def ring_degree(self) -> Ints:
        """Ranks that pass keys and values around: those of sp that do not split the heads instead."""
        return self.sp // self.ulysses_degree

    def is_recompute(self, name: str) -> Bools:
        return cast(Bools, self.recompute == RECOMPUTES.index(name))

    def is_attention(self, name: str) -> Bools:
        return cast(Bools, self.attention == ATTENTIONS.index(name))

    def is_kernel(self, name: str) -> Bools:
        return cast(Bools, self.kernel == KERNELS.index(name))

    def take(self, rows: ArrayLike) -> LayoutTable:
        """The rows of a boolean mask or of an index array; of a grid, places on its last axis."""
        chosen = np.asarray(rows)
        columns = {name: getattr(self, name) for name in COLUMNS}
        kept = {name: c if c.shape[-1] != len(self) else c[..., chosen] for name, c in columns.items()}
        return replace(self, **kept)

    def flat(self, cells: ArrayLike | None = None) -> LayoutTable:
        """The cells of a grid (a mask of its shape, or places in it; all of them) as a flat table."""
        assert not self.more_orders, "rows of a table share the order of the mesh"
        chosen = np.ones(self.shape, dtype=np.bool_) if cells is None else np.asarray(cells)
        where = np.nonzero(chosen) if chosen.dtype == np.bool_ else np.unravel_index(chosen, self.shape)
        columns: dict[str, Any] = {
            name: np.broadcast_to(getattr(self, name), self.shape)[where] for name in COLUMNS
        }
        return replace(self, **columns)

    def row(self, i: int) -> Layout:
        """One row of a flat table as a Layout; what covers all (layers, ranks of dp x sp) is None again."""
        at = {name: int(getattr(self, name)[i]) for name in COLUMNS}
        recompute = cast(Recompute, RECOMPUTES[at["recompute"]])
        whole_stage = at["recompute_layers"] >= max(self.stage_layers, default=0)
        return Layout(
            **{axis: at.get(axis, self.pp) for axis in AXES},
            micro_batch_size=at["micro_batch_size"],
            attention=cast(Attention, ATTENTIONS[at["attention"]]),
            ulysses_degree=at["ulysses_degree"],
            kernel=cast(Kernel, KERNELS[at["kernel"]]),
            schedule=cast(Any, self.schedule),
            num_virtual_stages=self.num_virtual_stages,
            recompute=recompute,
            recompute_layers=None if recompute == "none" or whole_stage else at["recompute_layers"],
            zero_stage=cast(Any, at["zero_stage"]),
            zero_shard_size=None if at["zero_shard_size"] == at["dp"] * at["sp"] else at["zero_shard_size"],
            precision=cast(Any, self.precision),
            tp_sequence_parallel=bool(at["tp_sequence_parallel"]),
            mesh_order=self.mesh_order,
            stage_layers=self.stage_layers,
        )


def num_microbatches(global_batch_size: ArrayLike, dp: ArrayLike, micro_batch_size: ArrayLike) -> Ints:
    """Micro-batches of one dp rank in one step; at least 1, so that an illegal layout can still be shown."""
    per_pass = np.asarray(dp, dtype=np.int64) * np.asarray(micro_batch_size, dtype=np.int64)
    count: Ints = np.maximum(np.asarray(global_batch_size, dtype=np.int64) // per_pass, 1)
    return count


def from_layouts(layouts: list[Layout], train: TrainSpec) -> LayoutTable:
    """Layouts that share pipeline, precision and mesh order as one table, rows in the given order."""
    first = layouts[0]
    for layout in layouts:
        assert pipeline_key(layout) == pipeline_key(first), "a table holds one pipeline"

    def column(values: list[int]) -> Ints:
        return np.array(values, dtype=np.int64)

    dp, sp = column([x.dp for x in layouts]), column([x.sp for x in layouts])
    micro = column([x.micro_batch_size for x in layouts])
    longest = max(first.stage_layers, default=0)
    return LayoutTable(
        pp=first.pp,
        stage_layers=first.stage_layers,
        schedule=first.schedule,
        num_virtual_stages=first.num_virtual_stages,
        precision=first.precision,
        mesh_order=first.mesh_order,
        dp=dp,
        tp=column([x.tp for x in layouts]),
        sp=sp,
        micro_batch_size=micro,
        num_microbatches=num_microbatches(train.global_batch_size, dp, micro),
        zero_stage=column([x.zero_stage for x in layouts]),
        zero_shard_size=column([x.zero_shard_size or x.dp * x.sp for x in layouts]),
        recompute=column([RECOMPUTES.index(x.recompute) for x in layouts]),
        recompute_layers=column([_recompute_layers(x, longest) for x in layouts]),
        attention=column([ATTENTIONS.index(x.attention) for x in layouts]),
        ulysses_degree=column([x.ulysses_degree for x in layouts]),
        kernel=column([KERNELS.index(x.kernel) for x in layouts]),
        tp_sequence_parallel=column([int(x.tp_sequence_parallel) for x in layouts]),
    )


def from_layout(layout: Layout, train: TrainSpec) -> LayoutTable:
    """A table of one row."""
    return from_layouts([layout], train)


def pipeline_key(layout: Layout) -> tuple[object, ...]:
    """What all rows of a table have in common."""
    return (
        layout.pp,
        layout.stage_layers,
        layout.schedule,
        layout.num_virtual_stages,
        layout.precision,
        layout.mesh_order,
    )


def tables_of(layouts: Sequence[Layout], train: TrainSpec) -> list[tuple[list[int], LayoutTable]]:
    """Layouts of one pipeline together as a table, with their places among all."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, layout in enumerate(layouts):
        groups.setdefault(pipeline_key(layout), []).append(place)
    return [(places, from_layouts([layouts[place] for place in places], train)) for places in groups.values()]


def concatenate(tables: list[LayoutTable]) -> LayoutTable:
    """Tables of one pipeline, one under the other."""
    assert tables
    scalars = [f.name for f in fields(LayoutTable) if f.name not in COLUMNS]
    for table in tables:
        assert all(getattr(table, name) == getattr(tables[0], name) for name in scalars)
    joined: dict[str, Any] = {name: np.concatenate([getattr(t, name) for t in tables]) for name in COLUMNS}
    return replace(tables[0], **joined)


def _recompute_layers(layout: Layout, longest_stage: int) -> int:
    if layout.recompute == "none":
        return 0
    return longest_stage if layout.recompute_layers is None else layout.recompute_layers
