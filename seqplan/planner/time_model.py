"""Seconds of one optimizer step, by kind, for one layout or a table of them.

The slowest stage decides: it works through all micro-batches, and the pipeline fills and drains through the
others once (pipeline_time.py). What the slowest stage does is compute, recompute, tp, sp, pp and dp; what it
waits for is the bubble. Every overlap that is counted is an assumption with a name (overlaps.py) and stands
in the estimate's notes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np

from seqplan.planner.activations import Floats
from seqplan.planner.choosing.layout_table import LayoutTable, from_layout
from seqplan.planner.collectives import Group, Network
from seqplan.planner.layout import Layout
from seqplan.planner.memory.model_states import RankParameters, head_stage, rank_parameters
from seqplan.planner.memory.peak_memory import peak_memory
from seqplan.planner.question import Question
from seqplan.planner.results import TIME_KINDS, TimeEstimate
from seqplan.planner.timing.data_parallel_time import DataParallelClock
from seqplan.planner.timing.flops import model_flops_per_step
from seqplan.planner.timing.layer_time import LayerClock
from seqplan.planner.timing.overlaps import time_notes
from seqplan.planner.timing.pipeline_time import pipeline_s
from seqplan.planner.timing.shared_cores import on_shared_cores_s
from seqplan.planner.timing.stage_time import StageTime, played_s, stage_time

OPTIMIZER_BYTES = 28
"""Adam reads weight, gradient and two moments and writes all but the gradient, float32 (4 bytes each)."""

CLIP_BYTES = 4
"""The gradient norm reads every gradient once more."""


@dataclass(frozen=True, eq=False)
class TimeTable:
    """Seconds of a step for every row of a LayoutTable."""

    by_kind: dict[str, Floats]
    bubble_fraction: Floats
    tokens_per_step: int
    gpus: int
    model_flops: float
    peak_flops_per_s: float
    stages: tuple[StageTime, ...]
    """In the order of the pipeline; stages that are alike are one object."""
    once: dict[str, Any]
    """Seconds of a step after its last backward, by what they are for: parts of dp, pp and the optimizer."""

    @cached_property
    def step_time_s(self) -> Floats:
        total: Any = 0.0
        for kind in TIME_KINDS:
            total = total + self.by_kind[kind]
        return np.asarray(total)

    @cached_property
    def tokens_per_s_per_gpu(self) -> Floats:
        return np.asarray(self.tokens_per_step / (self.gpus * self.step_time_s))

    @cached_property
    def mfu(self) -> Floats:
        return np.asarray(self.model_flops / (self.gpus * self.peak_flops_per_s * self.step_time_s))


def time_table(question: Question, table: LayoutTable, played: bool = False) -> TimeTable:
    """Step time of every row; `played`: the pipeline of a flat table by event simulation, no closed form."""
    network = Network.of(question)
    clock = LayerClock(question, table, network)
    parameters = rank_parameters(question, table)
    reduction = DataParallelClock(question, table, network)
    layer, embedding, head = clock.layer(parameters), clock.embedding(), clock.head()
    last = head_stage(table)
    # Stages that differ in nothing are timed once: (layers, first, last, boundaries) and how many there are.
    places = [
        (layers, stage == 0, stage == last, (stage > 0) + (stage < table.pp - 1))
        for stage, layers in enumerate(table.stage_layers)
    ]
    shapes = Counter(places)
    stages: list[StageTime] = []
    for layers, first, is_last, boundaries in shapes:
        ends = (embedding if first else None, head if is_last else None)
        held = _stage_parameters(parameters, layers, first, is_last)
        stages.append(stage_time(clock, reduction, layer, ends, boundaries, layers, held))
    counts = np.array(list(shapes.values()), dtype=np.float64)
    totals = np.stack(np.broadcast_arrays(*(stage.total for stage in stages), np.zeros(len(table)))[:-1])
    slowest = np.argmax(totals, axis=0)
    microbatches = table.num_microbatches.astype(np.float64)

    def of_slowest(values: list[Any]) -> Floats:
        chosen = np.broadcast_to(np.asarray(values[0], dtype=np.float64), slowest.shape)
        for place, value in enumerate(values[1:], 1):
            chosen = np.where(slowest == place, value, chosen)
        return chosen

    by_kind = {
        kind: microbatches * of_slowest([stage.by_kind[kind] for stage in stages])
        for kind in ("compute", "recompute", "tp", "sp", "pp", "dp")
    }
    # No BLAS here: its threads would wait for more work by spinning, which is charged as CPU time.
    all_stages = np.einsum("s,s...->...", counts, totals)
    longest = np.max(totals, axis=0)
    of_shape = dict(zip(shapes, stages, strict=True))
    in_order = [of_shape[place] for place in places]
    overlap = question.implementation.time.steps_overlap
    if played and table.pp > 1:
        whole = played_s(table, in_order, overlap)
    else:
        chunks, passes = table.num_virtual_stages, [stage.passes for stage in in_order]
        heaviest = [stage.heaviest_chunk_s(chunks) for stage in in_order] if chunks > 1 else []
        whole = pipeline_s(
            table.schedule, chunks, microbatches, passes, stages[0].hidden_hop, overlap, heaviest
        )
    if clock.device.core_share < 1.0:
        mean = all_stages / table.pp
        whole = on_shared_cores_s(whole, mean, clock.device.core_share, table.pp, microbatches)
        # Then the slowest stage has more than its share too.
        faster = np.minimum(whole / (microbatches * longest), 1.0)
        by_kind = {kind: seconds * faster for kind, seconds in by_kind.items()}
        longest = longest * faster
    by_kind["bubble"] = np.maximum(whole - microbatches * longest, 0.0)
    once = {
        "dp": reduce(np.maximum, [stage.dp_once for stage in stages]),
        "pp": _tied_reduction_s(question, table, network),
        "optimizer": _optimizer_s(clock, parameters) + float(clock.costs.step_s),
    }
    by_kind["dp"] = by_kind["dp"] + once["dp"]
    by_kind["pp"] = by_kind["pp"] + once["pp"]
    by_kind["optimizer"] = once["optimizer"]
    once["compute"] = _memory_pressure_s(question, table, by_kind)
    by_kind["compute"] = by_kind["compute"] + once["compute"]
    pipeline = microbatches * longest + by_kind["bubble"]
    train = question.train
    return TimeTable(
        by_kind=by_kind,
        bubble_fraction=np.maximum(1.0 - microbatches * all_stages / table.pp / pipeline, 0.0),
        tokens_per_step=train.global_batch_size * train.seq_len,
        gpus=question.gpus,
        model_flops=model_flops_per_step(question.model, train.seq_len, train.global_batch_size),
        peak_flops_per_s=clock.device.peak_flops_per_s,
        stages=tuple(in_order),
        once=once,
    )


def _memory_pressure_s(question: Question, table: LayoutTable, by_kind: dict[str, Floats]) -> Any:
    """What a step takes longer where the allocator has to free its blocks and ask for them again."""
    costs = question.implementation.time
    if costs.memory_pressure_factor <= 1.0:
        return 0.0
    memory = peak_memory(question, table)
    # Of the device's memory: what the user keeps free changes nothing for the allocator.
    pressed = memory.peak_bytes > question.cluster.limit_bytes() * costs.memory_pressure_share
    return np.where(pressed, (costs.memory_pressure_factor - 1.0) * reduce(np.add, by_kind.values()), 0.0)


def _stage_parameters(parameters: RankParameters, layers: int, first: bool, last: bool) -> Floats:
    distinct = min(layers, 1) if parameters.one_layer_a_stage else layers
    held = parameters.layer.whole * distinct
    held = held + parameters.embedding.whole if first else held
    return held + parameters.head.whole if last else held


def _tied_reduction_s(question: Question, table: LayoutTable, network: Network) -> Any:
    """Gradients of a tied embedding are added over first and last stage, once a step."""
    if not question.model.tied_embeddings or table.pp == 1 or head_stage(table) == 0:
        return 0.0
    rows = question.implementation.capabilities.padded_vocab(question.model.vocab_size, table.tp) / table.tp
    ends = network.group(table, ("pp",))
    pair = Group(np.full(len(table), 2.0), np.where(ends.inside_node, 2.0, 1.0))
    return network.all_reduce_s(4.0 * rows * question.model.embedding_size, pair)


def _optimizer_s(clock: LayerClock, parameters: RankParameters) -> Floats:
    """Memory-bound; the fullest stage decides. Sharded states are updated where they lie."""
    table, fullest = clock.table, np.zeros(len(clock.table))
    for stage in {0, table.pp - 1, int(np.argmax(table.stage_layers))}:
        values = parameters.stage(table, stage)
        updated = np.where(table.zero_stage >= 1, values["Pn"], values["P"])
        fullest = np.maximum(fullest, updated)
    per_parameter = OPTIMIZER_BYTES + CLIP_BYTES + (0 if table.precision == "fp32" else clock.values["e"])
    return np.asarray(clock.device.traffic_s(per_parameter * fullest))


def time_estimate(question: Question, layout: Layout) -> TimeEstimate:
    """Step time of one layout."""
    times = time_table(question, from_layout(layout, question.train), played=True)
    by_kind = {kind: float(times.by_kind[kind][0]) for kind in TIME_KINDS}
    return TimeEstimate(
        step_time_s=sum(by_kind.values()),
        tokens_per_s_per_gpu=float(times.tokens_per_s_per_gpu[0]),
        mfu=float(times.mfu[0]),
        by_kind=by_kind,
        bubble_fraction=float(times.bubble_fraction[0]),
        notes=time_notes(question, layout),
    )
