"""Attention operators in a simulation: each distinct call runs its Python body once, equal ones are replayed.

What an operator's fake registration allocates is unseen, so the simulation runs the body, hop by hop and
tile by tile; of hundreds of calls in a step most are equal. Shapes, strides and options decide all
that a body allocates and when it lets go, so a tape of the first call stands for the others: the
same storages in the same order, with new results. A test holds a replayed call to one that ran.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqplan.runtime.ring import Ring
from seqplan.runtime.simulation.simulate_tracker import Change, Event, Site, Tracker

WITHOUT_EFFECT = ("seed", "head_offset")
"""Arguments that choose values of a dropout mask and nothing else."""


@dataclass(frozen=True)
class Tape:
    """What one call did to the memory."""

    storages: tuple[tuple[Site, str | None], ...]
    """Where each was made, and its kind if somebody said it."""
    changes: tuple[tuple[int, int], ...]
    """Number of a storage, bytes that came or went; in order."""
    results: tuple[tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype], ...]
    """Number of each result's storage; shape, strides and dtype."""


class Operators:
    """The Python bodies of some operators, by operator, and the tapes of what has run."""

    def __init__(self, bodies: dict[Any, Callable[..., Any]]) -> None:
        self._bodies = bodies
        self._tapes: dict[tuple[Any, ...], Tape] = {}

    def __contains__(self, operator: Any) -> bool:
        return operator in self._bodies

    def call(self, tracker: Tracker, operator: Any, arguments: tuple[Any, ...]) -> Sequence[Tensor]:
        """The operator's results, its storages seen by the tracker."""
        key = _key(operator, arguments)
        tape = self._tapes.get(key)
        if tape is not None:
            return _replay(tape, tracker)
        start = len(tracker.events)
        with tracker:
            results: Sequence[Tensor] = self._bodies[operator](*arguments)
        if len(results) == 2:  # a forward: its result, and log-sum-exp or probabilities
            tracker.classify(results[1:], "attention")
        self._tapes[key] = _tape(tracker, tracker.events[start:], results)
        return results


def _key(operator: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """All that a call's allocations depend on."""
    named = zip(operator._schema.arguments, arguments, strict=True)
    return (operator, *(_described(declared.name, value) for declared, value in named))


def _described(name: str, value: Any) -> Any:
    if name in WITHOUT_EFFECT:
        return None
    if name == "group_name":
        ring = Ring.named(value)
        return ring.size, ring.rank
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride(), value.dtype
    return value


def _tape(tracker: Tracker, events: list[Event], results: Sequence[Tensor]) -> Tape:
    changes = [event for event in events if isinstance(event, Change)]
    assert len(changes) == len(events), "a phase began inside of an operator"
    number = {record: index for index, record in enumerate(dict.fromkeys(each.record for each in changes))}
    return Tape(
        tuple((record.site, record.kind) for record in number),
        tuple((number[change.record], change.size_bytes) for change in changes),
        tuple(
            (number[tracker.see(result)], tuple(result.shape), result.stride(), result.dtype)
            for result in results
        ),
    )


def _replay(tape: Tape, tracker: Tracker) -> Sequence[Tensor]:
    results = []
    for number, shape, stride, dtype in tape.results:
        # A kernel's log-sum-exp may be a part of its storage, whose rows are padded.
        size_bytes = sum(change for storage, change in tape.changes if storage == number)
        whole = torch.empty(size_bytes // dtype.itemsize, dtype=dtype)
        results.append(whole.as_strided(shape, stride))
    tracker.insert(tape.storages, tape.changes, [number for number, *_ in tape.results], results)
    return tuple(results)
