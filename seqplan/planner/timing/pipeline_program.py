"""A pipeline schedule as arrays: every operation of every stage in order, and what it waits for.

event_simulation.py plays these for many layouts at once. Under 1F1B, which our runtime executes, what a
computation sends and the next one receives is one exchange, as in schedule.one_f_one_b: it begins when the
stage arrives and ends a transfer after both sides are there. The other schedules send without waiting:
a result arrives a transfer after it is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from seqplan.planner.schedule_orders import StepKind, chunks_per_stage, depth, order

KINDS: tuple[StepKind, ...] = get_args(StepKind)
EXCHANGE = len(KINDS)
"""The code of an exchange, after those of the computations."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Program:
    """Operations [stage, place]; `waits_for` holds places in the flat array, with one more for `nothing`."""

    kind: Ints
    """Places in KINDS, or EXCHANGE."""
    micro_batch: Ints
    chunk: Ints
    waits_for: Ints
    """[2, stage, place]: the operations of other stages that must have ended."""
    transfers: Ints
    """Of an exchange, how many it has; an exchange of none takes no time and is no action."""

    @property
    def nothing(self) -> int:
        return self.kind.size


@cache
def program(schedule: str, stages: int, microbatches: int, num_virtual_stages: int = 1) -> Program:
    """The program of a schedule; built once for all layouts that share it."""
    chunks = chunks_per_stage(schedule, num_virtual_stages)
    steps = [order(schedule, stage, stages, microbatches, chunks) for stage in range(stages)]
    kind = np.array([[KINDS.index(step.kind) for step in own] for own in steps], dtype=np.int64)
    micro_batch = np.array([[step.micro_batch for step in own] for own in steps], dtype=np.int64)
    chunk = np.array([[step.chunk for step in own] for own in steps], dtype=np.int64)
    sources = _sources(schedule, kind, micro_batch, chunk, microbatches, chunks)
    if schedule not in ("none", "1f1b"):
        nothing = np.full_like(sources, kind.size)
        flat = np.where(sources >= 0, sources, kind.size)
        return Program(kind, micro_batch, chunk, np.stack([flat, nothing]), np.zeros_like(kind))
    return _with_exchanges(kind, micro_batch, sources)


def _sources(schedule: str, kind: Ints, micro_batch: Ints, chunk: Ints, m: int, chunks: int) -> Ints:
    """For each computation the flat place of the other stage's whose result it needs; -1: none."""
    stages, places = kind.shape
    flat = np.arange(kind.size).reshape(kind.shape)
    depths = np.array([[depth(schedule, s, c, stages) for c in range(chunks)] for s in range(stages)])
    at_depth = depths[np.arange(stages)[:, None], chunk]
    forward = kind == KINDS.index("forward")
    backward = (kind == KINDS.index("backward")) | (kind == KINDS.index("input_gradient"))
    where = np.full((2, stages * chunks + 2, m), -1, dtype=np.int64)  # one empty depth at either end
    where[0, at_depth[forward] + 1, micro_batch[forward]] = flat[forward]
    where[1, at_depth[backward] + 1, micro_batch[backward]] = flat[backward]
    source = np.full(kind.shape, -1, dtype=np.int64)
    source[forward] = where[0, at_depth[forward], micro_batch[forward]]
    source[backward] = where[1, at_depth[backward] + 2, micro_batch[backward]]
    own = source // places == np.arange(stages)[:, None]  # of the stage itself: the order sees to it
    return np.where(own, -1, source)


def _with_exchanges(kind: Ints, micro_batch: Ints, sources: Ints) -> Program:
    """Computation k of a stage at place 2 k + 1, and before it and after the last one an exchange.

    What is received there was made by the partner's source, which posts it in the exchange behind it; what
    is sent there, the partner receives in the exchange before its own computation.
    """
    stages, count = kind.shape
    places = 2 * count + 1
    stage, place = np.nonzero(sources >= 0)
    source_stage, source_place = np.divmod(sources[stage, place], count)
    receives = (stage, 2 * place)
    sends = (source_stage, 2 * source_place + 2)
    nothing = stages * places
    waits_for = np.full((2, stages, places), nothing, dtype=np.int64)
    # A side has posted when the operation before its exchange has ended.
    waits_for[(0, *receives)] = source_stage * places + 2 * source_place + 1
    before = stage * places + 2 * place - 1
    waits_for[(1, *sends)] = np.where(place > 0, before, nothing)
    transfers = np.zeros((stages, places), dtype=np.int64)
    transfers[receives] += 1
    transfers[sends] += 1
    kinds = np.full((stages, places), EXCHANGE, dtype=np.int64)
    kinds[:, 1::2] = kind
    micro_batches = np.zeros((stages, places), dtype=np.int64)
    micro_batches[:, 1::2] = micro_batch
    micro_batches[:, :-1:2] = micro_batch  # an exchange goes by the computation that it is before
    micro_batches[:, -1] = micro_batch[:, -1]
    return Program(kinds, micro_batches, np.zeros_like(kinds), waits_for, transfers)
