"""Plays a pipeline schedule with durations: when every stage computes, sends and waits.

1F1B's action lists (schedule.py) are played as the runtime executes them: an exchange is posted when the
stage arrives and ends when all its transfers have, a transfer takes `hop_s` from the moment that both sides
have posted it. gpipe and interleaved have no action list yet; their order of computations is played, a result
arriving `hop_s` after it is made. time_model.py's closed forms are held against this; the timeline exports
as Chrome trace JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from seqplan.planner.schedule import Compute, Exchange, Transfer, one_f_one_b

Kind = Literal["forward", "backward", "transfer"]


@dataclass(frozen=True)
class Event:
    """What one stage does from `start_s` to `end_s`."""

    stage: int
    kind: Kind
    micro_batch: int
    chunk: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class StageDurations:
    """Seconds of one micro-batch on one stage, all its chunks together."""

    forward_s: float
    backward_s: float


def simulate(
    schedule: str, stages: Sequence[StageDurations], microbatches: int, hop_s: float = 0.0, chunks: int = 1
) -> list[Event]:
    """The timeline of one step, forwards and backwards of all micro-batches."""
    if schedule in ("none", "1f1b"):
        return _play_exchanges(stages, microbatches, hop_s)
    assert schedule in ("gpipe", "interleaved"), schedule
    orders = [_order(schedule, stage, len(stages), microbatches, chunks) for stage in range(len(stages))]
    return _play_orders(orders, stages, hop_s, chunks)


def makespan_s(events: Sequence[Event]) -> float:
    """Seconds from the first computation to the end of the last."""
    return max(event.end_s for event in events)


def chrome_trace(events: Sequence[Event]) -> str:
    """The timeline as JSON that chrome://tracing and Perfetto open: a row for each stage, microseconds."""
    rows = [
        {
            "name": f"{event.kind} {event.micro_batch}" + (f" chunk {event.chunk}" if event.chunk else ""),
            "cat": event.kind,
            "ph": "X",
            "pid": 0,
            "tid": event.stage,
            "ts": event.start_s * 1e6,
            "dur": (event.end_s - event.start_s) * 1e6,
        }
        for event in events
    ]
    names = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": stage, "args": {"name": f"stage {stage}"}}
        for stage in sorted({event.stage for event in events})
    ]
    return json.dumps({"traceEvents": names + rows, "displayTimeUnit": "ms"})


def _play_exchanges(stages: Sequence[StageDurations], microbatches: int, hop_s: float) -> list[Event]:
    """Every stage's action list, each as far as its partners allow, until all are done."""
    count = len(stages)
    lists = [one_f_one_b(stage, count, microbatches) for stage in range(count)]
    at, clock = [0] * count, [0.0] * count
    posted: dict[tuple[int, Transfer], float] = {}
    events: list[Event] = []
    waiting: list[int | None] = [None] * count  # the exchange that a stage has posted and waits for
    moved = True
    while moved:
        moved = False
        for stage in range(count):
            while at[stage] < len(lists[stage]):
                action = lists[stage][at[stage]]
                if isinstance(action, Compute):
                    own = stages[stage]
                    seconds = own.forward_s if action.kind == "forward" else own.backward_s
                    end = clock[stage] + seconds
                    events.append(Event(stage, action.kind, action.micro_batch, 0, clock[stage], end))
                    clock[stage] = end
                else:
                    if waiting[stage] != at[stage]:
                        posted.update({(stage, each): clock[stage] for each in action.transfers})
                        waiting[stage], moved = at[stage], True
                    ended = _ended_s(stage, action, posted, hop_s)
                    if ended is None:
                        break
                    if ended > clock[stage]:
                        first = action.transfers[0].micro_batch
                        events.append(Event(stage, "transfer", first, 0, clock[stage], ended))
                    clock[stage] = ended
                at[stage] += 1
                moved = True
    assert all(at[stage] == len(lists[stage]) for stage in range(count)), "the schedule dead-locks"
    return events


def _ended_s(
    stage: int, action: Exchange, posted: dict[tuple[int, Transfer], float], hop_s: float
) -> float | None:
    """When all transfers of an exchange have ended; None while a partner has not posted its side."""
    ends = []
    for each in action.transfers:
        verb, _, direction = each.direction.partition("_")
        forward = direction == "forward"
        partner = stage + (1 if (verb == "send") == forward else -1)
        other: Transfer = Transfer(
            ("recv_" if verb == "send" else "send_") + direction,  # type: ignore[arg-type]
            each.micro_batch,
        )
        if (partner, other) not in posted:
            return None
        ends.append(max(posted[stage, each], posted[partner, other]) + hop_s)
    return max(ends)


@dataclass(frozen=True)
class _Step:
    kind: Literal["forward", "backward"]
    micro_batch: int
    chunk: int


def _order(schedule: str, stage: int, count: int, microbatches: int, chunks: int) -> list[_Step]:
    """Computations of a stage: all forwards then all backwards, or Megatron-LM's interleaved 1F1B."""
    if schedule == "gpipe":
        forwards = [_Step("forward", i, 0) for i in range(microbatches)]
        return forwards + [_Step("backward", i, 0) for i in range(microbatches)]
    total = microbatches * chunks
    group = count * chunks

    def step(kind: Literal["forward", "backward"], number: int) -> _Step:
        turn, place = divmod(number, group)
        chunk, inside = divmod(place, count)
        return _Step(
            kind, turn * count + inside, chunk if kind == "forward" else chunks - 1 - chunk
        )  # Narayanan et al. 2104.04473, figure 4

    warm_up = min((count - stage - 1) * 2 + (chunks - 1) * count, total)
    order = [step("forward", i) for i in range(warm_up)]
    for i in range(total - warm_up):
        order += [step("forward", warm_up + i), step("backward", i)]
    return order + [step("backward", i) for i in range(total - warm_up, total)]


def _play_orders(
    orders: list[list[_Step]], stages: Sequence[StageDurations], hop_s: float, chunks: int
) -> list[Event]:
    """Every stage's computations in order, each when its input has arrived."""
    count = len(stages)
    done: dict[tuple[int, _Step], float] = {}
    at, clock = [0] * count, [0.0] * count
    events: list[Event] = []
    moved = True
    while moved:
        moved = False
        for stage in range(count):
            while at[stage] < len(orders[stage]):
                step = orders[stage][at[stage]]
                source = _input_of(stage, step, count, chunks)
                if source is not None and source not in done:
                    break
                arrived = 0.0 if source is None else done[source] + (hop_s if source[0] != stage else 0.0)
                own = stages[stage]
                seconds = (own.forward_s if step.kind == "forward" else own.backward_s) / chunks
                start = max(clock[stage], arrived)
                clock[stage] = start + seconds
                done[stage, step] = clock[stage]
                events.append(Event(stage, step.kind, step.micro_batch, step.chunk, start, clock[stage]))
                at[stage] += 1
                moved = True
    assert all(at[stage] == len(orders[stage]) for stage in range(count)), "the schedule dead-locks"
    return events


def _input_of(stage: int, step: _Step, count: int, chunks: int) -> tuple[int, _Step] | None:
    """The computation whose result this one needs; None for the forward of the first chunk."""
    if step.kind == "forward":
        if stage > 0:
            return stage - 1, step
        return None if step.chunk == 0 else (count - 1, _Step("forward", step.micro_batch, step.chunk - 1))
    if stage < count - 1:
        return stage + 1, step
    if step.chunk == chunks - 1:
        return stage, _Step("forward", step.micro_batch, step.chunk)
    return 0, _Step("backward", step.micro_batch, step.chunk + 1)
