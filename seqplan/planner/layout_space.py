"""The candidates: one small generator an axis, combined into one LayoutTable for each pipeline.

Canonical: an option without effect is not a choice. With sp = 1 attention is plain (or rsa, when attention
probabilities are dropped), with tp = 1 tp_sequence_parallel is off, on one rank of dp x sp nothing can be
sharded. A pinned field is taken as pinned, and the rules say what that excludes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from seqplan.planner.errors import SeqplanError
from seqplan.planner.integers import divisors, listed
from seqplan.planner.layout import AXES, DEFAULT_MESH_ORDER, best_kernel, default_stage_layers, spread_layers
from seqplan.planner.layout_table import ATTENTIONS, KERNELS, RECOMPUTES, Ints, LayoutTable, num_microbatches
from seqplan.planner.question import Pins, Question

FEW_DIVISORS = 10
"""Up to so many divisors of a replica's batch are all tried as micro-batch sizes; of more, the powers of two
and those up to 8: sizes in between differ little in speed, and memory is what bounds them."""


@dataclass(frozen=True)
class Choices:
    """The options that the search may combine: those of the trainer, or all there are for a what-if."""

    recompute: tuple[str, ...]
    zero_stages: tuple[int, ...]
    attention: tuple[str, ...]
    tp_sequence_parallel: tuple[bool, ...]
    schedules: tuple[str, ...]


def trainer_choices(question: Question) -> Choices:
    """What the chosen trainer can run."""
    has = question.implementation.capabilities
    return Choices(
        recompute=has.recompute,
        zero_stages=has.zero_stages,
        attention=has.attention,
        tp_sequence_parallel=has.tp_sequence_parallel,
        schedules=has.schedules,
    )


def check_pins(question: Question, pins: Pins) -> None:
    """Pinned degrees must leave a whole number of GPUs to the others."""
    pinned = {axis: degree for axis in AXES if (degree := getattr(pins, axis)) is not None}
    product = int(np.prod(list(pinned.values()) or [1]))
    gpus = question.gpus
    whole = len(pinned) == len(AXES)
    if gpus % product == 0 and (not whole or product == gpus):
        return
    shown = " x ".join(f"{axis}={degree}" for axis, degree in pinned.items())
    ways = []
    for axis, degree in pinned.items():
        rest = product // degree
        if gpus % rest == 0:
            good = (gpus // rest,) if whole else divisors(gpus // rest)
            ways.append(f"{axis} {listed(good)}")
    rule = f"is {product}, not the {gpus} GPUs" if whole else f"does not divide the {gpus} GPUs"
    if len(pinned) > 1:
        rule = f"= {product} {rule}" if not whole else rule
    hint = (
        f"Use {'; or '.join(ways)}." if ways else f"Each degree must divide {gpus}: {listed(divisors(gpus))}."
    )
    raise SeqplanError(f"{shown} {rule}.", hint)


def pipeline_degrees(question: Question, pins: Pins) -> tuple[int, ...]:
    """Every number of stages that divides the GPU count."""
    return (pins.pp,) if pins.pp is not None else divisors(question.gpus)


def degree_triples(ranks: int, pins: Pins) -> list[tuple[int, int, int]]:
    """Every (dp, tp, sp) whose product is the ranks of one stage."""
    return [
        (ranks // tp // sp, tp, sp)
        for tp in divisors(ranks)
        for sp in divisors(ranks // tp)
        if pins.tp in (None, tp) and pins.sp in (None, sp) and pins.dp in (None, ranks // tp // sp)
    ]


def micro_batch_sizes(global_batch_size: int, dp: int, pins: Pins) -> tuple[int, ...]:
    """Sizes that divide a replica's batch; 1 where dp does not divide it, so that the rule can say so."""
    if pins.micro_batch_size is not None:
        return (pins.micro_batch_size,)
    if global_batch_size % dp:
        return (1,)
    sizes = divisors(global_batch_size // dp)
    if len(sizes) <= FEW_DIVISORS:
        return sizes
    return tuple(size for size in sizes if size <= 8 or size & (size - 1) == 0)


def stage_splits(question: Question, pp: int, pins: Pins) -> list[tuple[int, ...]]:
    """How the layers may lie on the stages: evenly, and with fewer on the last to make up for the head."""
    if pins.stage_layers is not None:
        return [pins.stage_layers]
    model, capabilities = question.model, question.implementation.capabilities
    stages = min(pp, model.num_layers)  # more stages fall to a rule
    splits = [default_stage_layers(model, stages, capabilities.stage_balance)]
    if pp > 1 and capabilities.uneven_stages:
        head = model.head_matmul_parameters / model.layer_matmul_parameters
        last = round((model.num_layers + head) / pp - head)
        if 1 <= last < splits[0][-1]:
            splits.append((*spread_layers(model.num_layers - last, pp - 1), last))
    return splits


def schedules(
    question: Question, pp: int, layers: tuple[int, ...], pins: Pins, has: Choices
) -> Iterator[tuple[str, int]]:
    """(schedule, num_virtual_stages) for this pipeline."""
    names = ("none",) if pp == 1 else tuple(name for name in has.schedules if name != "none") or ("1f1b",)
    for name in (pins.schedule,) if pins.schedule is not None else names:
        if pins.num_virtual_stages is not None:
            yield name, pins.num_virtual_stages
        elif name == "interleaved":
            common = int(np.gcd.reduce(layers))
            yield from ((name, chunks) for chunks in divisors(common)[1:] or (2,))
        else:
            yield name, 1


def attention_kinds(question: Question, has: Choices) -> tuple[str, ...]:
    """Attention with sp = 1 (first) and with sp > 1 (the rest)."""
    over_sp = tuple(name for name in has.attention if name != "none")
    if question.train.attention_dropout > 0 and "rsa" in over_sp:
        return ("rsa", "rsa")
    return ("none", *over_sp)


def option_columns(question: Question, pins: Pins, has: Choices) -> dict[str, Ints]:
    """Every combination of the options that do not belong to an axis, as short columns."""
    recompute = (pins.recompute,) if pins.recompute is not None else has.recompute
    zero = (pins.zero_stage,) if pins.zero_stage is not None else has.zero_stages
    over_tp = (
        (pins.tp_sequence_parallel,) if pins.tp_sequence_parallel is not None else has.tp_sequence_parallel
    )
    plain, *over_sp = attention_kinds(question, has)
    attention = [(plain, 0), *((name, 1) for name in over_sp)]
    if pins.attention is not None:
        attention = [(pins.attention, 0), (pins.attention, 1)]
    rows = [
        (RECOMPUTES.index(r), z, int(t), ATTENTIONS.index(name), needs_sp)
        for r, z, t, (name, needs_sp) in itertools.product(recompute, zero, over_tp, attention)
    ]
    names = ("recompute", "zero_stage", "tp_sequence_parallel", "attention", "over_sp")
    return dict(zip(names, np.array(rows, dtype=np.int64).T, strict=True))


def candidate_tables(question: Question, pins: Pins, has: Choices) -> Iterator[LayoutTable]:
    """Every candidate, one table for each pipeline (pp, its split and schedule)."""
    options = option_columns(question, pins, has)
    kernels = [
        KERNELS.index(pins.kernel or best_kernel(question, question.precision, name)) for name in ATTENTIONS
    ]
    for pp in pipeline_degrees(question, pins):
        columns = _columns(question, question.gpus // pp, pins, options, has)
        if not len(columns["dp"]):
            continue
        for layers in stage_splits(question, pp, pins):
            recompute_layers = (
                max(layers, default=0) if pins.recompute_layers is None else pins.recompute_layers
            )
            for schedule, chunks in schedules(question, pp, layers, pins, has):
                yield LayoutTable(
                    pp=pp,
                    stage_layers=layers,
                    schedule=schedule,
                    num_virtual_stages=chunks,
                    precision=question.precision,
                    mesh_order=pins.mesh_order or DEFAULT_MESH_ORDER,
                    recompute_layers=np.where(columns["recompute"] == 0, 0, recompute_layers),
                    kernel=np.array(kernels, dtype=np.int64)[columns["attention"]],
                    **columns,
                )


def _columns(
    question: Question, ranks: int, pins: Pins, options: dict[str, Ints], has: Choices
) -> dict[str, Ints]:
    """Degrees and batch of one stage's ranks, crossed with the options; what has no effect is left out."""
    batch = question.train.global_batch_size
    base = np.array(
        [
            (dp, tp, sp, micro)
            for dp, tp, sp in degree_triples(ranks, pins)
            for micro in micro_batch_sizes(batch, dp, pins)
        ],
        dtype=np.int64,
    ).reshape(-1, 4)
    times = len(options["recompute"])
    dp, tp, sp, micro = np.repeat(base, times, axis=0).T
    row = {name: np.tile(values, len(base)) for name, values in options.items()}
    keep = row["over_sp"] == (sp > 1)
    if pins.tp_sequence_parallel is None:
        off = int(has.tp_sequence_parallel[0]) if len(has.tp_sequence_parallel) == 1 else 0
        row["tp_sequence_parallel"] = np.where(tp == 1, 0, row["tp_sequence_parallel"])
        keep &= (tp > 1) | (np.tile(options["tp_sequence_parallel"], len(base)) == off)
    if pins.zero_stage is None:
        least = min(has.zero_stages)
        keep &= (dp * sp > 1) | (row["zero_stage"] == least)
    shard = np.full(len(dp), pins.zero_shard_size) if pins.zero_shard_size is not None else dp * sp
    columns = {
        "dp": dp,
        "tp": tp,
        "sp": sp,
        "micro_batch_size": micro,
        "num_microbatches": num_microbatches(batch, dp, micro),
        "zero_shard_size": shard,
        **{name: values for name, values in row.items() if name != "over_sp"},
    }
    return {name: values[keep] for name, values in columns.items()}
