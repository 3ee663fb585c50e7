"""How calibrate times anything: all ranks at once, in windows, in rounds over everything; the median.

A window holds many calls, because four processes on two cores run by turns of some milliseconds: one short
call sees a whole core, a mean over many sees the half that a training step will have. A window ends by the
clock, so all ranks work until about the same moment. Rounds, because a machine that others use too is slow
for seconds at a time: what is measured in turns is slowed alike, and curves keep their shape.

The time that is asked for is kept by the windows: what a round took beside them, and calls longer than a
window, come off the windows of the rounds that are left.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

SHORTEST_WINDOW_S = 0.002
LONGEST_WINDOW_S = 0.4

LEAST_ROUNDS = 3
"""So many are made however little time there is: of fewer the median is no better than any of them."""

MOST_CALLS = 2000
"""Calls of one window of a collective, which all ranks must make equally often."""

COLD_BYTES = {"cpu": 32 << 20, "cuda": 256 << 20}
"""Operands that no cache holds: larger than a core's share of a last-level cache, than a GPU's L2."""

MOST_COPIES = 64

LEAST_S = 1e-6
"""Of a time that is a difference of two."""

CALLS_BETWEEN_WAITS = 16
"""A GPU is waited for now and then only, so that its queue stays full."""


@dataclass
class Task:
    """Something to time. Every rank of the world has the same tasks in the same order."""

    what: str
    call: Callable[[], object]
    together: bool = False
    """A collective: every rank must call it equally often."""
    beside: Callable[[], object] | None = None
    """What each call also does, that is timed right after as often, and taken off."""
    means_s: list[float] = field(default_factory=list)
    cpu_means_s: list[float] = field(default_factory=list)
    """The same in seconds of this process's own CPU time, all threads: what waits costs nothing."""

    @property
    def seconds(self) -> float:
        """Median over the rounds; a difference that drowns in noise is next to nothing, not less."""
        return max(statistics.median(self.means_s), LEAST_S)


class InTurn:
    """Calls one of several equal operations after the other, and keeps each one's result for a round.

    In training no operation finds its operands in a cache, nor its result's memory just freed; one that is
    called again and again does (measured on a CPU: matmuls 15 % too fast).
    """

    def __init__(
        self, make: Callable[[], Callable[[], object]], bytes_of_one: float, device_type: str
    ) -> None:
        count = max(2, min(MOST_COPIES, math.ceil(COLD_BYTES[device_type] / bytes_of_one)))
        self._calls = [make() for _ in range(count)]
        self._results: list[object] = [None] * count
        self._next = 0

    def __call__(self) -> None:
        self._results[self._next] = self._calls[self._next]()
        self._next = (self._next + 1) % len(self._calls)


Report = Callable[[str, float], None]


def time_all(
    tasks: Sequence[Task], device: torch.device, window_s: float, rounds: int, report: Report | None
) -> None:
    """Fill the means of every task in windows of `window_s`; the same numbers on every rank."""
    costs_s = _warm_up(tasks, device)
    for turn in range(rounds):
        costs_s = _round(tasks, device, window_s, costs_s, report, (turn / rounds, 1.0 / rounds))


def time_within(
    tasks: Sequence[Task],
    device: torch.device,
    seconds: float,
    rounds: int,
    report: Report | None,
    started_s: float | None = None,
) -> None:
    """The same in windows such that all is done `seconds` after `started_s` (perf_counter's; now), if it can
    be: a machine that is busy gets shorter windows, and then fewer rounds."""
    started_s = time.perf_counter() if started_s is None else started_s
    costs_s, apart_s = _warm_up(tasks, device), 0.0
    elapsed_s = _longest(time.perf_counter() - started_s, device)
    for turn in range(rounds):
        if turn >= LEAST_ROUNDS and elapsed_s >= seconds:
            break
        window_s = window_within((seconds - elapsed_s) / (rounds - turn) - apart_s, costs_s)
        inside_s = sum(max(window_s, cost) for cost in costs_s)
        costs_s = _round(tasks, device, window_s, costs_s, report, (turn / rounds, 1.0 / rounds))
        before_s, elapsed_s = elapsed_s, _longest(time.perf_counter() - started_s, device)
        apart_s = max(0.0, elapsed_s - before_s - inside_s)


def window_within(seconds: float, costs_s: Sequence[float]) -> float:
    """The window with which a round takes `seconds`, where a call that is longer takes what it takes."""
    low, high = SHORTEST_WINDOW_S, LONGEST_WINDOW_S

    def round_s(window_s: float) -> float:
        return sum(max(window_s, cost) for cost in costs_s)

    if round_s(low) >= seconds:
        return low
    if round_s(high) <= seconds:
        return high
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if round_s(middle) < seconds else (low, middle)
    return low


def _warm_up(tasks: Sequence[Task], device: torch.device) -> list[float]:
    """Calls every task twice; seconds of the second call, and of what is taken off, on the slowest rank."""
    costs_s = []
    for task in tasks:
        task.call()
        if task.together:
            _wait_for_all(device)
        cost = _calls(task.call, 1, device)[0]
        costs_s.append(cost + (0.0 if task.beside is None else _calls(task.beside, 1, device)[0]))
    slowest = torch.tensor(costs_s, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return [max(float(cost), LEAST_S) for cost in slowest]


def _round(
    tasks: Sequence[Task],
    device: torch.device,
    window_s: float,
    costs_s: Sequence[float],
    report: Report | None,
    done: tuple[float, float],
) -> list[float]:
    """One window of every task; what a call of each cost this time. `done`: the share before it, and its own.

    What the ranks found is exchanged at the end: an exchange after each window is another wait for all.
    """
    found: list[tuple[float, float, float]] = []
    for number, (task, cost) in enumerate(zip(tasks, costs_s, strict=True)):
        if report is not None:
            report(task.what, done[0] + done[1] * number / len(tasks))
        _wait_for_all(device)
        if task.together:
            # By what all ranks know, so that each calls it equally often.
            count = max(1, min(MOST_CALLS, round(window_s / cost)))
            taken = _calls(task.call, count, device)
        else:
            count, taken = 1, _window(task, device, window_s)
        alone = (0.0, 0.0)
        if task.beside is not None:
            _wait_for_all(device)
            alone = _calls(task.beside, count, device)
        found.append((taken[0] - alone[0], taken[1] - alone[1], taken[0] + alone[0]))
    medians = _medians_of_ranks(found, device)
    for task, (clock_s, cpu_s, _) in zip(tasks, medians, strict=True):
        task.means_s.append(clock_s)
        task.cpu_means_s.append(cpu_s)
    return [max(cost, LEAST_S) for _, _, cost in medians]


def _calls(call: Callable[[], object], count: int, device: torch.device) -> tuple[float, float]:
    """Mean seconds of `count` calls: on the clock, and of this process's CPU time."""
    started, cpu_started = time.perf_counter(), time.process_time()
    for _ in range(count):
        call()
    _finish(device)
    return (time.perf_counter() - started) / count, (time.process_time() - cpu_started) / count


def _window(task: Task, device: torch.device, window_s: float) -> tuple[float, float]:
    started, cpu_started, calls = time.perf_counter(), time.process_time(), 0
    while True:
        task.call()
        calls += 1
        if device.type == "cuda" and calls % CALLS_BETWEEN_WAITS:
            continue
        _finish(device)
        elapsed = time.perf_counter() - started
        if elapsed >= window_s:
            return elapsed / calls, (time.process_time() - cpu_started) / calls


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _wait_for_all(device: torch.device) -> None:
    _finish(device)
    dist.barrier()
    _finish(device)


def _medians_of_ranks(rows: list[tuple[float, float, float]], device: torch.device) -> list[list[float]]:
    """Of every number the median over the ranks."""
    mine = torch.tensor(rows, dtype=torch.float64, device=device)
    told = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(told, mine)
    of_ranks = [each.tolist() for each in told]
    return [
        [statistics.median(each) for each in zip(*ranks, strict=True)]
        for ranks in zip(*of_ranks, strict=True)
    ]


def _longest(seconds: float, device: torch.device) -> float:
    """On whichever rank it is most, so that all ranks know the same."""
    told = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.all_reduce(told, op=dist.ReduceOp.MAX)
    return float(told)
