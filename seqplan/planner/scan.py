"""One pass over all candidates: legality as masks, memory for what is legal, time for what fits.

Nothing is built for a candidate but its row in a table; a Layout is made of the few rows that are shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from seqplan.planner.layout import AXES, Layout
from seqplan.planner.layout_space import Choices, candidate_tables
from seqplan.planner.layout_table import LayoutTable
from seqplan.planner.legality import sieve
from seqplan.planner.memory_model import MemoryTable, memory_table
from seqplan.planner.question import Pins, Question
from seqplan.planner.results import Rejected
from seqplan.planner.time_model import time_table

GIB = 2**30

SAME_TIME = 6
"""Step times that agree to so many digits are the same; the simpler layout then goes first."""


@dataclass
class Scan:
    """What stood and what fell."""

    candidates: int = 0
    legal: int = 0
    """Candidates that break no rule, so that the chosen trainer can run them."""
    costable: int = 0
    """Candidates that are possible, also those that the chosen trainer cannot run."""
    fitting: int = 0
    best: list[Layout] = field(default_factory=list)
    """Of those that fit, the fastest first."""
    nearest: Layout | None = None
    """Where nothing fits: the legal layout with the least peak memory."""
    rejected: tuple[Rejected, ...] = ()


def scan(question: Question, pins: Pins, choices: Choices, top: int, runnable_only: bool = True) -> Scan:
    """Score every candidate; `runnable_only=False` also those that the chosen trainer cannot run."""
    result = Scan()
    fallen: dict[str, tuple[int, str]] = {}
    leaders: list[tuple[tuple[float, ...], int, int]] = []
    tables: list[LayoutTable] = []
    least_peak, over_memory, example = np.inf, 0, ""
    for table in candidate_tables(question, pins, choices):
        result.candidates += len(table)
        sieved = sieve(question, table)
        result.legal += int(sieved.runnable.sum())
        result.costable += int(sieved.legal.sum())
        for rule, rows in sieved.fell_to:
            count, text = fallen.get(rule.name, (0, ""))
            text = text or rule.message(question, table.row(int(np.argmax(rows))))
            fallen[rule.name] = (count + int(rows.sum()), text)
        standing = table.take(sieved.runnable if runnable_only else sieved.legal)
        if not len(standing):
            continue
        memory = memory_table(question, standing)
        fits = memory.fits
        result.fitting += int(fits.sum())
        over_memory += int((~fits).sum())
        row = int(np.argmin(memory.peak_bytes))
        if memory.peak_bytes[row] < least_peak:
            least_peak = float(memory.peak_bytes[row])
            result.nearest = standing.row(row)
        if not fits.all() and not example:
            over = np.flatnonzero(~fits)  # the one of median size: the nearest miss would look like a fit
            middle = over[np.argsort(memory.peak_bytes[over])[len(over) // 2]]
            example = over_memory_text(standing, memory, int(middle))
        if fits.any() and top:
            fast = standing.take(fits)
            tables.append(fast)
            leaders.extend(_fastest(question, fast, top, len(tables) - 1))
    if over_memory:
        fallen["memory"] = (over_memory, example)
    result.best = [tables[index].row(row) for _, index, row in sorted(leaders)[:top]]
    ranked = sorted(fallen.items(), key=lambda item: -item[1][0])
    result.rejected = tuple(Rejected(rule=rule, count=n, example=text) for rule, (n, text) in ranked)
    return result


def _fastest(
    question: Question, table: LayoutTable, top: int, index: int
) -> list[tuple[tuple[float, ...], int, int]]:
    """The best rows of one table as (key, table, row), keys comparable over tables."""
    keys = _ranking_keys(table, time_table(question, table).step_time_s)
    order = np.lexsort(keys[::-1])[:top]
    return [(tuple(float(key[row]) for key in keys), index, int(row)) for row in order]


def _ranking_keys(table: LayoutTable, step_time_s: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Step time first; among equals the layout with fewer axes, less recomputation and less sharding."""
    with np.errstate(divide="ignore"):
        digits = SAME_TIME - 1 - np.floor(np.log10(step_time_s))
    scale = 10.0**digits
    rounded = np.round(step_time_s * scale) / scale
    axes = sum((table.degree(axis) > 1).astype(np.float64) for axis in AXES)
    simple = [
        axes,
        table.recompute,
        table.zero_stage,
        table.degree("pp"),
        table.tp,
        table.tp_sequence_parallel,
    ]
    simple += [table.sp, table.attention, table.micro_batch_size]
    return [rounded, *(np.asarray(key, dtype=np.float64) for key in simple)]


def over_memory_text(table: LayoutTable, memory: MemoryTable, row: int) -> str:
    """By how much one row exceeds the device, and its largest kinds of memory."""
    by_kind = {kind: float(values[row]) for kind, values in memory.by_kind.items()}
    peak, stage = float(memory.peak_bytes[row]), int(memory.worst_stage[row])
    return f"{table.row(row).degrees_text}: {memory_text(stage, peak, memory.limit_bytes, by_kind)}"


def memory_text(stage: int, peak_bytes: float, limit_bytes: float, by_kind: dict[str, float]) -> str:
    """Which terms of which stage exceed the device by how much."""
    largest = sorted(by_kind.items(), key=lambda item: -item[1])[:3]
    kinds = ", ".join(
        f"{kind.replace('_', ' ')} {value / GIB:.1f} GiB" for kind, value in largest if value > 0
    )
    return (
        f"stage {stage} needs {peak_bytes / GIB:.1f} GiB of {limit_bytes / GIB:.1f} GiB, "
        f"{excess_text(peak_bytes - limit_bytes)} too much; most of it is {kinds}."
    )


def excess_text(excess_bytes: float) -> str:
    """How much too much, in a unit in which it is not zero."""
    if excess_bytes >= 0.1 * GIB:
        return f"{excess_bytes / GIB:.1f} GiB"
    return f"{excess_bytes / 2**20:.0f} MiB" if excess_bytes >= 2**20 else "less than 1 MiB"
