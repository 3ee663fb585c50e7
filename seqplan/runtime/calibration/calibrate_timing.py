"""How calibrate times anything: all ranks at once, in windows, in rounds over everything; the median.

A window holds many calls, because four processes on two cores run by turns of some milliseconds: one short
call sees a whole core, a mean over many sees the half that a training step will have. A window ends by the
clock, so all ranks work until about the same moment. Rounds, because a machine that others use too is slow
for seconds at a time: what is measured in turns is slowed alike, and curves keep their shape.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

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


def time_all(
    tasks: Sequence[Task],
    device: torch.device,
    window_s: float,
    rounds: int,
    report: Callable[[str, float], None] | None,
) -> None:
    """Fill the means of every task; the same numbers on every rank."""
    calls = [_first_call(task, device, window_s) for task in tasks]
    for turn in range(rounds):
        for number, (task, count) in enumerate(zip(tasks, calls, strict=True)):
            if report is not None:
                report(task.what, (turn * len(tasks) + number) / (rounds * len(tasks)))
            _wait_for_all(device)
            taken = _calls(task.call, count, device) if task.together else _window(task, device, window_s)
            if task.beside is not None:
                _wait_for_all(device)
                alone = _calls(task.beside, count, device)
                taken = (taken[0] - alone[0], taken[1] - alone[1])
            task.means_s.append(_median_of_ranks(taken[0], device))
            task.cpu_means_s.append(_median_of_ranks(taken[1], device))


def _first_call(task: Task, device: torch.device, window_s: float) -> int:
    """Warms the task up; how many calls of it fill a window."""
    task.call()
    if not task.together:
        return 1
    _wait_for_all(device)
    seconds = _calls(task.call, 1, device)[0]
    if task.beside is not None:
        seconds += _calls(task.beside, 1, device)[0]
    once = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.all_reduce(once, op=dist.ReduceOp.MAX)
    return max(1, min(MOST_CALLS, round(window_s / float(once))))


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


def _median_of_ranks(value: float, device: torch.device) -> float:
    mine = torch.tensor([value], dtype=torch.float64, device=device)
    told = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(told, mine)
    return statistics.median(float(each) for each in told)
