"""Seconds of one micro-batch on one stage, by kind, and what of them the schedule can move about.

A stage is its layers and, at the ends, the embedding and the head. What it sends to its neighbours is part of
its passes where the stage waits for it, and a hop apart where computation hides it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from seqplan.planner.activations import Floats
from seqplan.planner.choosing.layout_table import Ints, LayoutTable
from seqplan.planner.schedule_orders import chunks_per_stage
from seqplan.planner.timing.data_parallel_time import DataParallelClock
from seqplan.planner.timing.event_simulation import StageDurations, makespan_s
from seqplan.planner.timing.layer_time import EndTime, LayerClock, LayerTime, PassTime
from seqplan.planner.timing.pipeline_time import Passes
from seqplan.planner.virtual_stages import chunk_layers


@dataclass(frozen=True, eq=False)
class StageTime:
    """Seconds of one micro-batch on one stage, by kind; dp's share of a step apart."""

    by_kind: dict[str, Any]
    forward: Any
    """Seconds of the forward, its share of what each micro-batch sends and reduces included."""
    weight: Any
    """Seconds of the backward that make weight gradients."""
    hop: Any
    """Seconds of one transfer to the next stage."""
    hidden_hop: Any
    """The same where computation hides it, else 0."""
    dp_once: Floats
    embedding_s: tuple[Any, Any]
    """Forward and backward of the embedding, where this stage has it."""
    head_s: tuple[Any, Any]
    chunk_layers: tuple[int, ...] = ()
    """Layers of each chunk, where they differ."""

    @cached_property
    def total(self) -> Any:
        return sum(self.by_kind.values())

    @cached_property
    def passes(self) -> Passes:
        """Forward, backward, and the part of the backward that makes weight gradients."""
        return self.forward, self.total - self.forward, self.weight

    def heaviest_chunk_s(self, chunks: int) -> Any:
        """Forward and backward of the chunk that takes longest: that with the head, or with most layers."""
        ends = sum(self.embedding_s) + sum(self.head_s)
        part = max(self.chunk_layers) / sum(self.chunk_layers) if self.chunk_layers else 1.0 / chunks
        return (self.total - ends) * part + sum(self.head_s)

    def durations(self, schedule: str) -> StageDurations:
        """As event_simulation.py takes them: where it plays the exchanges, without their time."""
        forward, backward, weight = self.passes
        sent = 0.5 * self.by_kind["pp"] if schedule == "1f1b" else 0.0
        first, last = self.embedding_s, self.head_s
        return StageDurations(forward - sent, backward - sent, weight, first, last, self.chunk_layers)


def stage_time(
    clock: LayerClock,
    reduction: DataParallelClock,
    layer: LayerTime,
    ends: tuple[EndTime | None, EndTime | None],
    boundaries: int,
    layers: int,
    parameters: Floats,
) -> StageTime:
    """One stage of every row; `ends`: the embedding and the head, where the stage has them."""
    table = clock.table
    recomputed = np.minimum(table.recompute_layers, layers)
    full = np.where(table.is_recompute("full"), recomputed, 0)
    selective = np.where(table.is_recompute("selective"), recomputed, 0)
    again = [(full, layer.forward), (selective, layer.selective_forward)]
    held = [end for end in ends if end is not None]
    forwards: list[tuple[Any, PassTime]] = [(layers, layer.forward), *((1, end.forward) for end in held)]
    backwards: list[tuple[Any, PassTime]] = [(layers, layer.backward), *((1, end.backward) for end in held)]
    everything = [*forwards, *backwards, *again]
    forward_s = sum(times * part.window for times, part in forwards)
    backward_s = sum(times * part.window for times, part in [*backwards, *again])
    data_parallel = reduction.exposed(parameters, layers, forward_s, backward_s)
    values = clock.values
    sent = values["e"] * values["Tr"] * values["h"]
    # A chunked schedule sends every micro-batch over each boundary once a chunk.
    if clock.costs.transfers_split_over_tp:
        part = values["e"] * values["T"] * values["h"]
        gathered = np.where(
            values["tp_sequence_parallel"], 0.0, clock.network.all_gather_s(part, clock.tp_group)
        )
        hop = clock.network.neighbour_s(part / values["tp"], clock.stage_group) + gathered
    else:
        hop = clock.network.neighbour_s(sent, clock.stage_group)
    hop = hop + float(clock.costs.stage_transfer_s)
    hides = clock.costs.transfers_overlap and table.schedule == "interleaved"
    hops = boundaries * chunks_per_stage(table.schedule, table.num_virtual_stages) * hop
    unsharded = (table.zero_stage == 0) & (table.dp * table.sp > 1) & clock.transfers_leave_node
    waits = unsharded * float(clock.costs.unsharded_transfers_s)
    by_kind = {
        "compute": sum(times * part.compute for times, part in [*forwards, *backwards])
        + float(clock.costs.micro_batch_s),
        "recompute": sum(times * part.compute for times, part in again),
        "tp": sum(times * part.tp for times, part in everything),
        "sp": sum(times * part.sp for times, part in everything),
        "pp": 0.0 if hides else hops,
        "dp": data_parallel.each_micro_batch + waits,
    }
    forward = sum(times * (part.compute + part.tp + part.sp) for times, part in forwards)
    forward = forward + 0.5 * (by_kind["pp"] + float(clock.costs.micro_batch_s))
    weight = layers * layer.weight_gradient + sum(end.weight_gradient for end in held)
    return StageTime(
        by_kind=by_kind,
        forward=forward,
        weight=weight,
        hop=hop,
        hidden_hop=hop if hides else 0.0,
        dp_once=data_parallel.once,
        embedding_s=_passes_of(ends[0]),
        head_s=_passes_of(ends[1]),
        chunk_layers=_unequal_chunks(table, layers, first=ends[0] is not None),
    )


def _unequal_chunks(table: LayoutTable, layers: int, first: bool) -> tuple[int, ...]:
    """Layers of each chunk of such a stage; none where all its chunks are alike."""
    if table.schedule != "interleaved" or not layers:
        return ()
    stage = 0 if first else table.stage_layers.index(layers, 1)
    sizes = chunk_layers(table.stage_layers, stage, table.num_virtual_stages)
    return sizes if len(set(sizes)) > 1 else ()


def _passes_of(end: EndTime | None) -> tuple[Any, Any]:
    if end is None:
        return 0.0, 0.0
    forward, backward = ((part.compute + part.tp + part.sp) for part in (end.forward, end.backward))
    return forward, backward


def played_s(table: LayoutTable, stages: Sequence[StageTime], steps_overlap: bool) -> Floats:
    """The pipeline's seconds of every row of a flat table, by event simulation; `stages` in order."""
    exchanges = table.schedule == "1f1b"
    distinct = list(dict.fromkeys(stages))
    found = np.zeros(len(table))
    for count in np.unique(table.num_microbatches):
        rows = np.flatnonzero(table.num_microbatches == count)
        durations = {stage: _of_rows(stage.durations(table.schedule), rows) for stage in distinct}
        hop_s = _column(stages[0].hop if exchanges else stages[0].hidden_hop, rows)
        found[rows] = makespan_s(
            table.schedule,
            [durations[stage] for stage in stages],
            int(count),
            hop_s,
            table.num_virtual_stages,
            steps_overlap,
        )
    return found


def _of_rows(durations: StageDurations, rows: Ints) -> StageDurations:
    """Some rows of every column."""
    one = durations
    ends = [
        (_column(forward, rows), _column(backward, rows)) for forward, backward in (one.first_s, one.last_s)
    ]
    passes = [_column(value, rows) for value in (one.forward_s, one.backward_s, one.weight_s)]
    return replace(
        durations,
        forward_s=passes[0],
        backward_s=passes[1],
        weight_s=passes[2],
        first_s=ends[0],
        last_s=ends[1],
    )


def _column(value: Any, rows: Ints) -> Any:
    return value if np.ndim(value) == 0 or np.shape(value) == (1,) else np.asarray(value)[rows]
