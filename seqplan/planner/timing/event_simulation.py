"""Plays a pipeline schedule with durations, for many layouts at once: when each stage computes and waits.

The programs of pipeline_program.py are played round by round: every stage whose next operation has all that
it waits for does it. pipeline_time.py's closed forms are held against this, and the leaders of a search are
timed by it. A step of many micro-batches repeats itself: it is played up to FULLY_PLAYED rounds of the
pipeline, and the rest added at the pace of its last round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from seqplan.planner.activations import Floats
from seqplan.planner.schedule_orders import chunks_per_stage
from seqplan.planner.timing.pipeline_program import EXCHANGE, KINDS, Ints, Program, program

FULLY_PLAYED = 3
"""Rounds of as many micro-batches as stages: one fills the pipeline, one drains it, one is steady."""


@dataclass(frozen=True)
class StageDurations:
    """Seconds of one micro-batch on one stage, each a number or a column of layouts; all chunks together.

    `weight_s` is the part of `backward_s` that makes weight gradients. `first_s` and `last_s` are (forward,
    backward) of what only the stage's first or last chunk has: the embedding, the head.
    """

    forward_s: Any
    backward_s: Any
    weight_s: Any = 0.0
    first_s: tuple[Any, Any] = (0.0, 0.0)
    last_s: tuple[Any, Any] = (0.0, 0.0)
    chunk_layers: tuple[int, ...] = ()
    """Layers of each chunk, where they differ."""

    def of_chunk(self, chunk: int, chunks: int) -> dict[str, Any]:
        """Seconds by kind of computation; embedding and head on their own chunks, the rest by layers."""
        found = []
        part = self.chunk_layers[chunk] / sum(self.chunk_layers) if self.chunk_layers else 1.0 / chunks
        for whole, first, last in zip(
            (self.forward_s, self.backward_s), self.first_s, self.last_s, strict=True
        ):
            share = (whole - first - last) * part
            share = share + first if chunk == 0 else share
            found.append(share + last if chunk == chunks - 1 else share)
        forward, backward = found
        weight = backward * (self.weight_s / np.maximum(self.backward_s, 1e-300))
        return {
            "forward": forward,
            "backward": backward,
            "input_gradient": backward - weight,
            "weight_gradient": weight,
        }


@dataclass(frozen=True, eq=False)
class Played:
    """When every operation of a program began and ended, [stage, place, layout]."""

    program: Program
    start_s: Floats
    end_s: Floats

    def step_s(self, steps_overlap: bool = False) -> Floats:
        """From the first operation of all to the last; or of the stage that takes longest, where the next
        step need not wait for the others.
        """
        if steps_overlap:
            return np.asarray((self.end_s.max(axis=1) - self.start_s.min(axis=1)).max(axis=0))
        return np.asarray(self.end_s.max(axis=(0, 1)))


def play(
    schedule: str,
    stages: Sequence[StageDurations],
    microbatches: int,
    hop_s: Any = 0.0,
    num_virtual_stages: int = 1,
) -> Played:
    """Every operation of one step."""
    ops = program(schedule, len(stages), microbatches, num_virtual_stages)
    count, places = ops.kind.shape
    taken = _durations(ops, stages, hop_s, chunks_per_stage(schedule, num_virtual_stages))
    is_exchange = (ops.kind.ravel() == EXCHANGE)[:, None]
    # An exchange takes the transfer itself; elsewhere a result arrives a transfer after it was made.
    lag = 0.0 if is_exchange.any() else np.asarray(hop_s, dtype=np.float64)
    start = np.zeros(taken.shape)
    end = np.zeros((ops.nothing + 1, taken.shape[1]))
    for now, first, second in _rounds(ops):
        free = np.where((now % places == 0)[:, None], 0.0, end[now - 1])
        arrived = np.where((first < ops.nothing)[:, None], np.maximum(end[first], end[second]) + lag, 0.0)
        arrived = np.maximum(arrived, end[second])
        ready = np.maximum(free, arrived)
        # An exchange begins when its stage is there, not when its partners are.
        start[now] = np.where(is_exchange[now], free, ready)
        end[now] = ready + taken[now]
    shape = (count, places, taken.shape[1])
    return Played(ops, start.reshape(shape), end[:-1].reshape(shape))


def _durations(ops: Program, stages: Sequence[StageDurations], hop_s: Any, chunks: int) -> Floats:
    """Seconds of every operation, [flat place, layout]."""
    per_chunk = [[each.of_chunk(chunk, chunks) for chunk in range(chunks)] for each in stages]
    columns = [value for own in per_chunk for each in own for value in each.values()]
    rows = np.broadcast_shapes((1,), np.shape(hop_s), *map(np.shape, columns))[0]
    seconds = np.empty((len(stages), chunks, EXCHANGE + 1, rows))
    seconds[:, :, EXCHANGE] = hop_s
    for stage, own in enumerate(per_chunk):
        for chunk, by_kind in enumerate(own):
            for code, kind in enumerate(KINDS):
                seconds[stage, chunk, code] = by_kind[kind]
    taken = seconds[np.arange(len(stages))[:, None], ops.chunk, ops.kind]
    taken[(ops.kind == EXCHANGE) & (ops.transfers == 0)] = 0.0
    return np.asarray(taken.reshape(-1, rows))


Round = tuple[Ints, Ints, Ints]
"""Operations, and the two that each waits for."""


@cache
def _rounds(ops: Program) -> list[Round]:
    """The operations that can be done together, round after round."""
    count, places = ops.kind.shape
    done = np.zeros(ops.nothing + 1, dtype=np.bool_)
    done[-1] = True
    first, second = ops.waits_for.reshape(2, -1)
    at = np.arange(count) * places
    last = at + places
    found = []
    while (left := at < last).any():
        now = at[left]
        now = now[done[first[now]] & done[second[now]]]
        assert len(now), "the schedule dead-locks"
        found.append((now, first[now], second[now]))
        done[now] = True
        at[now // places] += 1
    return found


def makespan_s(
    schedule: str,
    stages: Sequence[StageDurations],
    microbatches: int,
    hop_s: Any = 0.0,
    num_virtual_stages: int = 1,
    steps_overlap: bool = False,
) -> Floats:
    """Seconds of one step's pipeline, layout by layout; `steps_overlap` as in pipeline_time.pipeline_s."""
    count = len(stages)

    def step_s(played: int) -> Floats:
        return play(schedule, stages, played, hop_s, num_virtual_stages).step_s(steps_overlap)

    rounds_played = FULLY_PLAYED
    if schedule == "interleaved":  # its first rounds take what p leaves over, one micro-batch each
        rounds_played = max(FULLY_PLAYED, microbatches % count + 2)
    if microbatches < (rounds_played + 2) * count:
        return step_s(microbatches)
    fewer = rounds_played * count + microbatches % count
    before, after = step_s(fewer), step_s(fewer + count)
    rounds = (microbatches - fewer) // count
    return np.asarray(before + rounds * (after - before))
