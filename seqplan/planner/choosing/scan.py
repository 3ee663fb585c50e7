"""One pass over the candidates: legality as masks, memory for what is legal, time for what fits.

What it leaves out at first comes where it may lead: micro-batch sizes between those tried (sizes_between.py),
and then splits of the layers that tight memory asks for (tight_splits.py).

Nothing is built for a candidate but its cell in a grid; a Layout is made of the few that are shown. Of
layouts that differ in nothing but recomputation only those with the fewest layers of each mode are timed
that fit, and none where it fits without: more recomputation only costs time (test_search_scale.py holds
this against a loop over every candidate). Splits of the layers share all stages that are alike in both, and a
row is timed in no further split once it cannot be faster than the leaders (bounds.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from seqplan.planner.choosing.bounds import RowBounds, row_bounds
from seqplan.planner.choosing.layout_grid import Grid, Sizes, candidate_grids
from seqplan.planner.choosing.layout_table import RECOMPUTES, Bools, LayoutTable
from seqplan.planner.choosing.ranking import Leaders
from seqplan.planner.choosing.sizes_between import SizesBetween
from seqplan.planner.choosing.tight_splits import TightRows, tight_splits
from seqplan.planner.layout import Layout
from seqplan.planner.layout_space import Choices
from seqplan.planner.memory.peak_memory import StageMemories, peak_memory
from seqplan.planner.memory_model import MemoryTable, memory_table
from seqplan.planner.question import Pins, Question
from seqplan.planner.results import Rejected
from seqplan.planner.rules.legality import Sieve, sieve, sieve_alike
from seqplan.planner.time_model import time_table

GIB = 2**30

CHUNK_CELLS = 1 << 17
"""Cells of a grid that are costed together: 1 MiB a column, so that a few columns stay in the cache."""

FIRST = 8
"""Leaders in whose pipelines splits for tight memory are tried."""


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
    return _Scanner(question, top, runnable_only).run(pins, choices)


class _Scanner:
    """The state of one pass."""

    def __init__(self, question: Question, top: int, runnable_only: bool) -> None:
        self.question, self.top, self.runnable_only = question, top, runnable_only
        self.result = Scan()
        self.fallen: dict[str, tuple[int, str]] = {}
        self.leaders = Leaders(top)
        self.least_peak = np.inf
        self.over_memory = 0
        self.example = ""

    def run(self, pins: Pins, choices: Choices) -> Scan:
        between = SizesBetween(self.question, pins)
        self.tight = TightRows(self.question, pins, choices)
        for grid in candidate_grids(self.question, pins, choices):
            self._sift(grid, between if self.top and between.thinned else None)
        if (sizes := between.to_try(self.leaders.worst_s)) is not None:
            for number, grid in enumerate(candidate_grids(self.question, pins, choices, sizes), start=1):
                self._sift(self._hopeful(grid), number=number)
        if (sizes := self._tight_sizes()) is not None:
            self.tight.matters = False
            for grid in candidate_grids(self.question, pins, choices, sizes, tight_splits):
                self._sift(grid)
        if self.over_memory:
            self.fallen["memory"] = (self.over_memory, self.example)
        ranked = sorted(self.fallen.items(), key=lambda item: -item[1][0])
        self.result.rejected = tuple(Rejected(rule=rule, count=n, example=text) for rule, (n, text) in ranked)
        self.result.best = self.leaders.layouts()
        return self.result

    def _tight_sizes(self) -> Sizes | None:
        """Micro-batch sizes, by degrees, of rows that splits for tight memory may help."""
        if not self.top or not self.tight.matters:
            return None
        device, spared = self.question.cluster.device, self.question.train.headroom_fraction
        limit = float(device.memory_bytes) * (1.0 - spared)
        return self.tight.to_try(self.leaders.layouts()[:FIRST], self.leaders.best_s, limit)

    def _hopeful(self, grid: Grid) -> Grid:
        """The rows that may still lead."""
        if not np.isfinite(self.leaders.worst_s):
            return grid
        allowed = np.zeros(len(grid.table), dtype=np.bool_)
        for sieved, _ in sieve_splits(self.question, grid):
            cells = self._standing(grid, sieved)
            allowed |= cells.reshape(-1, cells.shape[-1]).any(axis=0)
        rows = np.flatnonzero(allowed)
        if len(rows):
            part = grid.take(rows)
            rows = rows[row_bounds(self.question, part).least_s(part.table) <= self.leaders.worst_s]
        return grid.take(rows)

    def _sift(self, grid: Grid, between: SizesBetween | None = None, number: int = 0) -> None:
        """Legality of one grid in all its splits; what stands is costed chunk by chunk.

        Grids of one `number` and pp have the same rows.
        """
        if not len(grid.table):
            return
        if between is not None:
            between.saw(grid)
        for sieved, splits in sieve_splits(self.question, grid):
            for each in splits:
                self.result.candidates += each.count(True)
                self.result.legal += each.count(sieved.runnable)
                self.result.costable += each.count(sieved.costable)
                self._fell(each, sieved)
            cells = self._standing(grid, sieved)
            legal = np.asarray(cells.reshape(-1, cells.shape[-1]).any(axis=0))
            for chosen in row_chunks(grid.table, np.flatnonzero(legal)):
                fitted, light = self._cost([each.take(chosen) for each in splits], cells[..., chosen])
                self.tight.judged(number, grid, chosen, ~light)
                if between is not None:
                    between.judged(grid, chosen, fitted)

    def _standing(self, grid: Grid, sieved: Sieve) -> Bools:
        """Candidates that break no rule that counts here."""
        standing = sieved.runnable if self.runnable_only else sieved.costable
        return np.asarray(standing & (grid.weight > 0))

    def _fell(self, grid: Grid, sieved: Sieve) -> None:
        for rule, cells in sieved.fell_to:
            number = grid.count(cells)
            if not number:
                continue
            count, text = self.fallen.get(rule.name, (0, ""))
            text = text or rule.message(self.question, grid.example(cells).row(0))
            self.fallen[rule.name] = (count + number, text)

    def _cost(self, splits: list[Grid], standing: Bools) -> tuple[Bools, Bools]:
        """Memory of the cells that stand, and the time of those that fit and may still lead.

        Returns the rows of which any cell fits, and those that fit without recomputation.
        """
        shared = StageMemories(self.question, splits[0].table)
        bounds: RowBounds | None = None
        fitted = light = np.zeros(len(splits[0].table), dtype=np.bool_)
        without = np.flatnonzero(splits[0].table.recompute[:, 0, 0] == RECOMPUTES.index("none"))
        for grid in splits:
            fits = self._fitting(grid, standing, shared)
            fitted = fitted | fits.any(axis=(0, 1))
            light = light | fits[without].any(axis=(0, 1))
            if not self.top or not fits.any():
                continue
            if np.isfinite(self.leaders.worst_s):
                bounds = bounds or row_bounds(self.question, grid)
                fits &= bounds.least_s(grid.table) <= self.leaders.worst_s
            if fits.any():
                lead(self.question, self.leaders, grid, fits)
        return fitted, light

    def _fitting(self, grid: Grid, standing: Bools, shared: StageMemories) -> Bools:
        """Which of the cells that stand fit; they are counted, and the nearest miss is kept."""
        memory = peak_memory(self.question, grid.table, shared)
        fits = memory.fits & standing
        number, legal = grid.count(fits), grid.count(standing)
        self.result.fitting += number
        self.over_memory += legal - number
        if not number and not self.result.fitting:
            peak = np.where(standing, memory.peak_bytes, np.inf)
            least = int(np.argmin(peak))
            self.tight.peaked(grid, float(peak.flat[least]))
            if peak.flat[least] < self.least_peak:
                self.least_peak = float(peak.flat[least])
                self.result.nearest = grid.table.flat([least]).row(0)
        if number < legal and not self.example:
            over = np.flatnonzero(standing & ~memory.fits)
            # The one of median size: the nearest looks like a fit.
            peaks = memory.peak_bytes.flat[over]
            middle = over[np.argpartition(peaks, len(over) // 2)[len(over) // 2]]
            miss = grid.table.flat([int(middle)])
            self.example = over_memory_text(miss, memory_table(self.question, miss), 0)
        return fits


def lead(question: Question, leaders: Leaders, grid: Grid, fits: Bools) -> None:
    """Hand the leaders the fastest of what fits, in every order of the mesh."""
    table, fits = fewest_recomputed(grid.table, fits)
    rows: Bools = np.asarray(fits.any(axis=(0, 1)))
    timed, orders = replace(grid, table=table).in_orders(rows)
    seconds = time_table(question, timed).step_time_s
    for place, (order, own) in enumerate(orders):
        one = replace(timed, mesh_order=order, more_orders=())
        leaders.add(one, seconds[place] if timed.more_orders else seconds, fits[..., rows] & own)


def sieve_splits(question: Question, grid: Grid) -> list[tuple[Sieve, list[Grid]]]:
    """The splits of a grid, those together of which the rules say the same."""
    found: list[tuple[Sieve, list[Grid]]] = []
    for each in grid.each_split():
        alike = next((pair for pair in found if sieve_alike(question, pair[1][0].table, each.table)), None)
        if alike is None:
            found.append((sieve(question, each.table), [each]))
        else:
            alike[1].append(each)
    return found


def row_chunks(table: LayoutTable, rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Rows of a grid in parts of about CHUNK_CELLS cells."""
    step = max(CHUNK_CELLS // math.prod(table.shape[:-1]), 1)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def fewest_recomputed(table: LayoutTable, fits: Bools) -> tuple[LayoutTable, Bools]:
    """Of each mode of recomputation the fewest layers that fit, as a smaller grid [mode, sharding, row]."""
    modes = table.recompute[:, 0, 0]
    layers, found = [], []
    for mode in range(len(RECOMPUTES)):
        own = np.flatnonzero(modes == mode)
        if len(own):
            first = own[np.argmax(fits[own], axis=0)]  # layers ascend within a mode
            layers.append(table.recompute_layers[:, 0, 0][first])
            found.append(fits[own].any(axis=0))
            if len(found) > 1 and modes[0] == 0:
                found[-1] &= ~found[0]  # it fits without
    kept = np.array([mode for mode in range(len(RECOMPUTES)) if (modes == mode).any()], dtype=np.int64)
    smaller = replace(table, recompute=kept[:, None, None], recompute_layers=np.stack(layers))
    return smaller, np.stack(found)


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
