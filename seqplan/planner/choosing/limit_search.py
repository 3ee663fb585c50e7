"""The longest sequence, or the largest batch, at which some row of the candidates still fits.

Exact: every value is one that a layout may have (a length that the split divides, a batch of whole
micro-batches) and is put through the memory model; nothing is extrapolated. All rows are tried at once and
those that fail a value are left behind, so that a search over hundreds of layouts costs some thirty
evaluations. Memory grows with length and batch but for small steps down (a fused kernel that takes fours, a
ring that turns for more heads at once): after the bisection, the next values above are tried as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from seqplan.planner.choosing.layout_table import Bools, Ints, LayoutTable
from seqplan.planner.layout import LARGEST_COUNT, Layout
from seqplan.planner.memory_model import memory_table
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.question import Question
from seqplan.planner.rules.legality import sieve
from seqplan.planner.rules.rules_degrees import sequence_divisor

VALUES_ABOVE = 8
"""Legal values above the one found that are tried too. Steps down come in fours, so eight see two of them."""

LARGEST_TOKENS = LARGEST_COUNT // 2**10
"""A search ends here: no memory holds it, and products of counts stay exact."""


@dataclass(frozen=True)
class Found:
    """The largest value and a layout that reaches it."""

    value: int
    layout: Layout


def at_length(question: Question, seq_len: int) -> Question:
    """The question for another length; a learned position table grows to it."""
    train = question.train.model_copy(update={"seq_len": seq_len})
    model = question.model
    if model.position == "learned" and model.position_rows < seq_len:
        grown = {"position_rows": seq_len, "max_position_embeddings": seq_len}
        model = ModelSpec.model_validate({**model.model_dump(), **grown})
    return question.model_copy(update={"train": train, "model": model})


def divisors_of_length(question: Question, table: LayoutTable) -> Ints:
    """What the length must be a multiple of, row by row."""
    ring, over_tp = table.ring_degree, table.tp_sequence_parallel
    divisor: Ints = sequence_divisor(question, table.sp, table.tp, over_tp, ring)
    return divisor


# Length


def longest_sequence(question: Question, tables: Sequence[LayoutTable]) -> Found | None:
    """The longest sequence of any row; None where none fits at the shortest legal length."""
    if not tables:
        return None
    coarse = int(np.lcm.reduce(np.concatenate([divisors_of_length(question, table) for table in tables])))
    best, rows = 0, list(tables)
    step = coarse
    while step <= LARGEST_TOKENS and (longer := _fitting(question, rows, step)):
        best, rows = step, longer
        step *= 2
    step = best // 2
    while step >= coarse:
        if longer := _fitting(question, rows, best + step):
            best, rows = best + step, longer
        step //= 2
    best, rows = _on_finer_steps(question, rows, best, best + coarse)
    best, rows = _values_above(question, rows, best)
    return Found(best, _simplest(rows)) if best else None


def _fitting(question: Question, tables: Iterable[LayoutTable], seq_len: int) -> list[LayoutTable]:
    """The rows that may have this length and fit."""
    asked = at_length(question, seq_len)
    kept = []
    for table in tables:
        standing = table.take(sieve(asked, table).runnable)
        if len(standing):
            fits = memory_table(asked, standing).fits
            if fits.any():
                kept.append(standing.take(fits))
    return kept


def _on_finer_steps(
    question: Question, tables: list[LayoutTable], best: int, end: int
) -> tuple[int, list[LayoutTable]]:
    """Lengths between two coarse ones, for the rows whose own divisor is finer."""
    found = tables if best else []
    divisors = sorted({int(d) for table in tables for d in divisors_of_length(question, table)})
    for divisor in divisors:
        rows = _rows_of_divisor(question, tables, divisor)
        low, high = best // divisor, -(-end // divisor)
        if (low + 1) * divisor >= end or not (longer := _fitting(question, rows, (low + 1) * divisor)):
            continue
        low += 1
        rows = longer
        while high - low > 1:
            middle = (low + high) // 2
            if longer := _fitting(question, rows, middle * divisor):
                low, rows = middle, longer
            else:
                high = middle
        best, found = low * divisor, rows
    return best, found


def _rows_of_divisor(question: Question, tables: list[LayoutTable], divisor: int) -> list[LayoutTable]:
    parts = [table.take(divisors_of_length(question, table) == divisor) for table in tables]
    return [part for part in parts if len(part)]


def _values_above(question: Question, tables: list[LayoutTable], best: int) -> tuple[int, list[LayoutTable]]:
    """The same search's last word: lengths just above, each through the model."""
    divisors = sorted({int(d) for table in tables for d in divisors_of_length(question, table)})
    found = tables
    for divisor in divisors:
        rows = _rows_of_divisor(question, tables, divisor)
        above = 1
        while above <= VALUES_ABOVE:
            length = (best // divisor + above) * divisor
            if longer := _fitting(question, rows, length):
                best, found, above = length, longer, 0
            above += 1
    return best, found


# Batch


def largest_batch(question: Question, tables: Sequence[LayoutTable]) -> Found | None:
    """The largest batch of any row at its num_microbatches; None where none fits with one sequence each."""
    best: Found | None = None
    for table in tables:
        least = best.value if best is not None else 0
        found = _largest_of_table(question, table, least)
        if found is not None:
            best = found
    return best


def _with_sizes(table: LayoutTable, sizes: Ints) -> LayoutTable:
    return replace(table, micro_batch_size=sizes)


def _batches(table: LayoutTable, sizes: Ints) -> Ints:
    return table.dp * table.num_microbatches * sizes


def _fits(question: Question, table: LayoutTable, sizes: Ints) -> Bools:
    fits: Bools = memory_table(question, _with_sizes(table, sizes)).fits
    return fits


def _largest_of_table(question: Question, table: LayoutTable, least: int) -> Found | None:
    """The largest batch above `least` of one table's rows."""
    size, sizes = 1, np.zeros(len(table), dtype=np.int64)
    growing = np.arange(len(table))
    while len(growing) and size <= LARGEST_TOKENS:
        rows = table.take(growing)
        growing = growing[_fits(question, rows, np.full(len(rows), size))]
        sizes[growing] = size
        size *= 2
    # A row stays below twice what it has: below the best so far it cannot win.
    bound = max(int(np.max(_batches(table, sizes), initial=0)), least)
    hopeful = (2 * _batches(table, sizes) > bound) & (sizes > 0)
    table, sizes = table.take(hopeful), sizes[hopeful]
    if not len(table):
        return None
    steps = sizes // 2
    while steps.any():
        larger = sizes + steps
        sizes = np.where((steps > 0) & _fits(question, table, larger), larger, sizes)
        steps = steps // 2
    above = 1
    while above <= VALUES_ABOVE:
        fits = _fits(question, table, sizes + above)
        sizes = np.where(fits, sizes + above, sizes)
        above = 1 if fits.any() else above + 1
    batches = _batches(table, sizes)
    if int(batches.max()) <= least:
        return None
    chosen = _with_sizes(table, sizes).take(batches == batches.max())
    return Found(int(batches.max()), _simplest([chosen]))


def _simplest(tables: list[LayoutTable]) -> Layout:
    """Of the rows that reach the same value, the one with least recomputation, sharding and splitting."""
    rows = [(table, row) for table in tables for row in range(len(table))]

    def order(item: tuple[LayoutTable, int]) -> tuple[int, ...]:
        table, row = item
        names = ("recompute", "zero_stage", "tp", "sp", "attention", "tp_sequence_parallel")
        return (int(table.recompute[row]), table.pp, *(int(getattr(table, name)[row]) for name in names))

    table, row = min(rows, key=order)
    return table.row(row)
