"""Rules about the four degrees: the GPU count, tp against the model's widths, sp against the sequence."""

from __future__ import annotations

import math

import numpy as np

from seqplan.planner.choosing.layout_table import Bools, Ints, LayoutTable
from seqplan.planner.layout import AXES, Layout
from seqplan.planner.question import Question
from seqplan.planner.reading.integers import divisors, listed, multiples_around
from seqplan.planner.rules.rule import Rule


def _world_size_broken(question: Question, table: LayoutTable) -> Bools:
    product = math.prod(table.degree(axis).astype(np.float64) for axis in AXES)  # cannot overflow
    return np.asarray(product != question.gpus)


def _world_size(question: Question, layout: Layout) -> str:
    product = " x ".join(f"{axis}={degree}" for axis, degree in layout.degrees.items())
    world, gpus = layout.world_size, question.gpus
    ways = [
        f"{axis}={gpus * degree // world}"
        for axis, degree in layout.degrees.items()
        if gpus * degree % world == 0 and (degree > 1 or world < gpus)
    ]
    odd = [axis for axis, degree in layout.degrees.items() if gpus % degree]
    if odd:
        ways.append(f"{listed(odd)} to a divisor of {gpus} ({listed(divisors(gpus))})")
    if not ways:
        lower = listed([axis for axis, degree in layout.degrees.items() if degree > 1])
        ways = [f"{lower or 'the degrees'} so that the product is {gpus}"]
    node = question.cluster.gpus_per_node
    whole = world <= node or world % node == 0
    other = f", or use {world} GPUs" if whole else f" ({world} GPUs are no whole nodes of {node})"
    return f"{product} needs {world} GPUs, not {gpus}; set {listed(ways)}{other}."


def tensor_degrees(question: Question) -> tuple[int, ...]:
    """Every tp that divides the heads and, unless the trainer copies them, the kv heads."""
    model = question.model
    copies = question.implementation.capabilities.tp_copies_kv_heads
    return tuple(
        tp
        for tp in divisors(model.num_attention_heads)
        if model.num_kv_heads % tp == 0 or (copies and tp % model.num_kv_heads == 0)
    )


def _use_tp(question: Question, tp: int) -> str:
    """The values of tp that would work, which of them the MLP allows too, and the nearest one."""
    model, ffn = question.model, question.model.ffn_hidden_size
    by_heads = tensor_degrees(question)
    by_all = [value for value in by_heads if ffn % value == 0]
    both = (
        ""
        if model.num_kv_heads == model.num_attention_heads
        else f" (num_kv_heads={model.num_kv_heads} counted)"
    )
    text = f"use {listed(by_heads)}{both}"
    if len(by_all) < len(by_heads):
        text += (
            f", of which {listed(by_all, 'and')} also divide{'s' * (len(by_all) == 1)} ffn_hidden_size={ffn}"
        )
    here = [value for value in by_all if question.gpus % value == 0]
    nearest = min(here, key=lambda value: (abs(value - tp), value))
    return f"{text}; on {question.gpus} GPUs the nearest that works is {nearest}."


def _heads_broken(question: Question, table: LayoutTable) -> Bools:
    wrong: Bools = question.model.num_attention_heads % table.tp != 0
    return wrong


def _heads(question: Question, layout: Layout) -> str:
    heads = question.model.num_attention_heads
    return f"tp={layout.tp} does not divide num_attention_heads={heads}; {_use_tp(question, layout.tp)}"


def _kv_heads_broken(question: Question, table: LayoutTable) -> Bools:
    kv_heads = question.model.num_kv_heads
    wrong: Bools = kv_heads % table.tp != 0
    if question.implementation.capabilities.tp_copies_kv_heads:
        wrong &= table.tp % kv_heads != 0
    return wrong


def _kv_heads(question: Question, layout: Layout) -> str:
    kv_heads, name = question.model.num_kv_heads, question.implementation.name
    if question.implementation.capabilities.tp_copies_kv_heads:
        rule = f"neither divides nor is a multiple of num_kv_heads={kv_heads}"
    elif layout.tp > kv_heads:
        rule = f"is more than num_kv_heads={kv_heads}, and {name} does not copy kv heads"
    else:
        rule = f"does not divide num_kv_heads={kv_heads}"
    return f"tp={layout.tp} {rule}; {_use_tp(question, layout.tp)}"


def _ffn_broken(question: Question, table: LayoutTable) -> Bools:
    wrong: Bools = question.model.ffn_hidden_size % table.tp != 0
    return wrong


def _ffn(question: Question, layout: Layout) -> str:
    ffn = question.model.ffn_hidden_size
    return f"tp={layout.tp} does not divide ffn_hidden_size={ffn}; {_use_tp(question, layout.tp)}"


def _vocab_broken(question: Question, table: LayoutTable) -> Bools | bool:
    if question.implementation.capabilities.vocab_multiple:
        return False  # padded, see notes.py
    wrong: Bools = question.model.vocab_size % table.tp != 0
    return wrong


def _vocab(question: Question, layout: Layout) -> str:
    vocab, tp = question.model.vocab_size, layout.tp
    pads = sorted({math.ceil(vocab / (unit * tp)) * unit * tp for unit in (1, 64, 128)})
    fitting = [value for value in divisors(vocab) if value < 2 * tp]
    return (
        f"tp={tp} does not divide vocab_size={vocab}, and {question.implementation.name} does not pad it; "
        f"use tp {listed(fitting)}, or pad the vocabulary to {listed(pads)}."
    )


def sequence_divisor(
    question: Question, sp: Ints, tp: Ints, tp_sequence_parallel: Ints, ring: Ints | None = None
) -> Ints:
    """What seq_len must be a multiple of: the one place that says so. `ring`: where it is not all of sp.

    Each sp rank holds a contiguous part (sp), or when causal two chunks, one from either end, so that all
    ranks do the same work (zigzag: 2 sp); tp_sequence_parallel splits a rank's tokens over tp once more.
    """
    ring = sp if ring is None else ring
    chunks = np.where((ring > 1) & question.model.causal, 2 * sp, sp)
    return np.lcm(chunks, np.where(tp_sequence_parallel > 0, sp * tp, 1))


def _sequence_broken(question: Question, table: LayoutTable) -> Bools:
    ring, over_tp = table.ring_degree, table.tp_sequence_parallel
    divisor = sequence_divisor(question, table.sp, table.tp, over_tp, ring)
    wrong: Bools = question.train.seq_len % divisor != 0
    return wrong


def _sequence(question: Question, layout: Layout) -> str:
    seq_len, sp, tp = question.train.seq_len, layout.sp, layout.tp
    one, ring = np.array([1], dtype=np.int64), sp // layout.ulysses_degree
    over_tp = int(layout.tp_sequence_parallel) * one
    step = int(sequence_divisor(question, sp * one, tp * one, over_tp, ring * one)[0])
    zigzag = question.model.causal and ring > 1
    parts = f"2 x sp with sp={sp}: the causal zigzag split" if zigzag else f"sp={sp}"
    if layout.tp_sequence_parallel:
        chunks = "2 x sp" if zigzag else "sp"
        parts = f"lcm of {chunks} and sp x tp with sp={sp}, tp={tp}: tp_sequence_parallel splits over tp too"
    degrees = divisors(question.gpus)
    ok = sequence_divisor(
        question,
        np.array(degrees),
        np.full(len(degrees), tp),
        np.full(len(degrees), int(layout.tp_sequence_parallel)),
    )
    working = [degree for degree, divisor in zip(degrees, ok, strict=True) if seq_len % divisor == 0]
    either = f", or sp {listed(working)}" if working else ""
    return (
        f"seq_len={seq_len} is not a multiple of {step} ({parts}); the nearest legal lengths are "
        f"{listed(multiples_around(seq_len, step), 'and')}{either}."
    )


RULES: tuple[Rule, ...] = (
    Rule("world_size", "layout", _world_size_broken, _world_size),
    Rule("tp_heads", "layout", _heads_broken, _heads),
    Rule("tp_kv_heads", "layout", _kv_heads_broken, _kv_heads),
    Rule("tp_ffn", "layout", _ffn_broken, _ffn),
    Rule("tp_vocab", "layout", _vocab_broken, _vocab),
    Rule("sequence", "layout", _sequence_broken, _sequence),
)
