"""What each field of a layout may be: one small generator a field; layout_grid.py combines them.

Only values that have an effect: a pipeline schedule with pp > 1, attention over sp with sp > 1. A pinned
field is taken as pinned, and the rules say what that excludes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from seqplan.planner.choosing.layout_table import RECOMPUTES
from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import AXES, DEFAULT_MESH_ORDER
from seqplan.planner.layout_defaults import default_stage_layers
from seqplan.planner.question import Pins, Question
from seqplan.planner.reading.integers import divisors, listed
from seqplan.planner.timing.flops import mean_attention_pairs
from seqplan.planner.virtual_stages import chunk_counts

FEW_DIVISORS = 10
"""Up to so many divisors of a replica's batch are all tried as micro-batch sizes; of more, those up to 8,
then those at least FARTHER times the one before, and the largest. Sizes between these come in a second
pass, where one of them may lead (sizes_between.py)."""

FARTHER = 16


@dataclass(frozen=True)
class Choices:
    """The options that the search may combine: those of the trainer, or all there are for a what-if."""

    recompute: tuple[str, ...]
    zero_stages: tuple[int, ...]
    attention: tuple[str, ...]
    tp_sequence_parallel: tuple[bool, ...]
    schedules: tuple[str, ...]
    partial_recompute: bool = False
    """Some of a stage's layers recomputed, not all or none."""
    hybrid_sharding: bool = False
    """States sharded over fewer ranks than dp x sp."""
    ulysses: bool = False
    """Heads split over sp, or over neighbours in sp with a ring over the rest."""
    uneven_splits: bool = True
    """More splits of the layers than the even one, if the trainer has them."""
    tight_splits: bool = True
    """Of these also such as only tight memory asks for, in a pass of their own (tight_splits.py)."""
    most_chunks: int | None = None
    """Of an interleaved stage; None: as many as its layers allow."""


def trainer_choices(question: Question) -> Choices:
    """What the chosen trainer can run."""
    has = question.implementation.capabilities
    return Choices(
        recompute=has.recompute,
        zero_stages=has.zero_stages,
        attention=has.attention,
        tp_sequence_parallel=has.tp_sequence_parallel,
        schedules=has.schedules,
        partial_recompute=has.partial_recompute and has.searches_recompute_layers,
        hybrid_sharding=has.hybrid_sharding,
        ulysses=has.ulysses,
    )


def all_choices(question: Question) -> Choices:
    """What any trainer might run.

    gpipe is left out: the time of 1f1b, and never less memory; and zbh1 and zbh2: zbv has the memory of the
    one and the bubble of the other (2405.15362, table 1). So are uneven splits of the layers and more than 8
    chunks: they are worth a percent, which is no reason for another trainer.
    """
    has = question.implementation.capabilities
    return Choices(
        recompute=RECOMPUTES,
        zero_stages=has.zero_stages,  # of what it lacks here its inventory knows nothing: rules_trainer.py
        attention=has.attention,
        tp_sequence_parallel=(False, True),
        schedules=("none", "1f1b", "interleaved", "zbv"),
        partial_recompute=True,
        hybrid_sharding=True,
        ulysses=True,
        uneven_splits=False,
        most_chunks=8,
    )


def check_pins(question: Question, pins: Pins) -> None:
    """What is pinned must be possible whatever the rest is. Raises SeqplanError."""
    layers, num_layers = pins.stage_layers, question.model.num_layers
    if layers is not None and (sum(layers) != num_layers or pins.pp not in (None, len(layers))):
        text = "+".join(map(str, layers))
        if sum(layers) != num_layers:
            problem = f"is {sum(layers)} layers, and {question.model.name} has {num_layers}"
        else:
            problem = f"is {len(layers)} stages, and pp={pins.pp}"
        hint = f"Write a number for each stage, {num_layers} together, or leave stage_layers to the search."
        raise SeqplanError(f"stage_layers={text} {problem}.", hint)
    if pins.recompute == "none" and pins.recompute_layers is not None:
        raise SeqplanError(
            f"recompute_layers={pins.recompute_layers} with recompute=none: nothing is recomputed.",
            "Set recompute to full or selective, or leave recompute_layers out.",
        )
    _check_degrees(question, pins if layers is None else pins.model_copy(update={"pp": len(layers)}))


def _check_degrees(question: Question, pins: Pins) -> None:
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
    """Every number of stages that divides the GPU count, or the pinned one."""
    if pins.pp is None and pins.stage_layers is not None:
        return (len(pins.stage_layers),)
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
    few = [size for size in sizes if size <= 8]
    for size in sizes[len(few) :]:
        if size >= FARTHER * few[-1]:
            few.append(size)
    return (*few, sizes[-1]) if few[-1] < sizes[-1] else tuple(few)


def stage_splits(question: Question, pp: int, pins: Pins) -> list[tuple[int, ...]]:
    """How the layers may lie on the stages: evenly first, then by what each end carries beside its layers.

    The last stage has its even share, or less by what the head's matmul takes of the time, or half of that.
    What the others have left over goes to the first of them, so that a slow stage starts at once and is
    waited for least; the even split gives it to later ones, which keep fewer micro-batches in memory
    (test_stage_splits.py: against every split of a small model).
    """
    if pins.stage_layers is not None:
        return [pins.stage_layers]
    model, capabilities = question.model, question.implementation.capabilities
    stages = min(pp, model.num_layers)  # more stages fall to a rule
    even = default_stage_layers(model, stages, capabilities.stage_balance)
    if pp == 1 or pp > model.num_layers or not capabilities.uneven_stages:
        return [even]
    head = head_layers(question)
    balanced = (model.num_layers + head) / pp - head
    lowest = max(math.floor(balanced), 1)
    found = dict.fromkeys([even])
    for last in (even[-1], math.ceil(balanced), (even[-1] + lowest) // 2, lowest):
        if lowest <= last <= model.num_layers - (pp - 1):
            share, left_over = divmod(model.num_layers - last, pp - 1)
            found[(*[share + 1] * left_over, *[share] * (pp - 1 - left_over), last)] = None
    return list(found)


def head_layers(question: Question) -> float:
    """Matmuls of the head over those of a layer, attention at this length included."""
    model = question.model
    attention = (
        2.0
        * model.attention_size
        * mean_attention_pairs(model, question.train.seq_len)
        / question.train.seq_len
    )
    return model.head_matmul_parameters / (model.layer_matmul_parameters + attention)


def schedules(pp: int, layers: tuple[int, ...], pins: Pins, has: Choices) -> Iterator[tuple[str, int]]:
    """(schedule, num_virtual_stages) for this pipeline."""
    names = ("none",) if pp == 1 else tuple(name for name in has.schedules if name != "none") or ("1f1b",)
    for name in (pins.schedule,) if pins.schedule is not None else names:
        if pins.num_virtual_stages is not None:
            yield name, pins.num_virtual_stages
        elif name == "interleaved":
            counts = chunk_counts(layers) or (2,)
            most = has.most_chunks or counts[-1]
            yield from ((name, chunks) for chunks in counts if chunks <= max(most, counts[0]))
        else:
            yield name, 1


def pipelines(
    question: Question, pp: int, pins: Pins, has: Choices, splits: list[tuple[int, ...]] | None = None
) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """(schedule, num_virtual_stages, layers of each stage), the even split first; or these splits."""
    even, *others = stage_splits(question, pp, pins)
    others = others if has.uneven_splits else []
    for layers in (even, *others) if splits is None else splits:
        for schedule, chunks in schedules(pp, layers, pins, has):
            # In a V the first stage has the head, so that what suits the last stage suits the first.
            mirrored = schedule == "zbv" and layers != even
            yield schedule, chunks, layers[::-1] if mirrored else layers


def attention_options(question: Question, sp: int, pins: Pins, has: Choices) -> list[tuple[str, int]]:
    """(attention, ulysses_degree): with sp = 1 plain, or rsa where probabilities are dropped.

    All of sp splitting the heads is attention=ulysses, and no ring of one rank. Degrees that divide no
    model's heads are left out. What is pinned to a pair that cannot be is there all the same: the rules say
    why.
    """
    dropped = question.train.attention_dropout > 0 and "rsa" in has.attention
    found = [(name, 1) for name in has.attention if name not in ("none", "ulysses")]
    if dropped or sp == 1:
        found = [("rsa" if dropped else "none", 1)]
    elif has.ulysses:
        heads = question.model.num_attention_heads
        degrees = [degree for degree in divisors(sp)[1:] if heads % degree == 0]
        splits = [("ulysses" if degree == sp else "ring", degree) for degree in degrees]
        found += [split for split in splits if split[0] == "ulysses" or "ring" in has.attention]
    name, degree = pins.attention, pins.ulysses_degree
    chosen = [pair for pair in found if name in (None, pair[0]) and degree in (None, pair[1])]
    if chosen:
        return chosen
    name = name or ("ulysses" if degree == sp else "ring")
    return [(name, degree or (sp if name == "ulysses" else 1))]


def recompute_options(longest: int, pins: Pins, has: Choices) -> list[tuple[int, int]]:
    """(place in RECOMPUTES, layers): none, and of each mode every number of the longest stage's layers."""
    names = (pins.recompute,) if pins.recompute is not None else has.recompute
    found = []
    for name in names:
        if name == "none":
            found.append((0, 0))
        elif pins.recompute_layers is not None:
            found.append((RECOMPUTES.index(name), pins.recompute_layers))
        else:
            fewest = 1 if has.partial_recompute else longest
            found += [(RECOMPUTES.index(name), layers) for layers in range(min(fewest, longest), longest + 1)]
    return found


def sharding_options(ranks: int, pins: Pins, has: Choices) -> list[tuple[int, int]]:
    """(zero_stage, zero_shard_size), 0 for all of dp x sp; `ranks` are those of one stage."""
    stages = (pins.zero_stage,) if pins.zero_stage is not None else has.zero_stages
    if pins.zero_shard_size is not None:
        return [(stage, pins.zero_shard_size) for stage in stages]
    fewer = divisors(ranks)[1:-1] if has.hybrid_sharding else ()
    return [(stage, size) for stage in stages for size in ((0, *fewer) if stage else (0,))]


SENSIBLE_ORDERS: tuple[tuple[str, ...], ...] = (
    DEFAULT_MESH_ORDER,
    ("dp", "pp", "sp", "tp"),  # stages next to each other, replicas far apart: the reduction is rare
    ("pp", "sp", "dp", "tp"),  # dp inside nodes: for ZeRO's gathers, when blocks hide the ring
    ("pp", "dp", "tp", "sp"),  # the ring inside nodes
)
"""tp or the ring innermost, pp or dp outermost: what talks most lies closest."""


def mesh_orders(question: Question, pins: Pins) -> tuple[tuple[str, ...], ...]:
    """Orders of the axes that can differ: on one node, or with one device a node, all are the same."""
    if pins.mesh_order is not None:
        return (pins.mesh_order,)
    size = question.cluster.gpus_per_node
    return SENSIBLE_ORDERS[:1] if size == 1 or question.gpus <= size else SENSIBLE_ORDERS
