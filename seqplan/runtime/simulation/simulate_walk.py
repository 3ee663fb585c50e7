"""From a recording to the peak of a stage: phases with their changes and peaks, in the order of the schedule.

A phase (one layer's forward, one exchange) changes the held bytes by its net and reaches its own peak above
where it began. A recording of a few layers and micro-batches has every kind of phase; the stage's whole step
is those phases in the order of its action list, equal ones repeated. A test compares that with simulations of
every layer and micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from seqplan.planner.schedule import Action, Compute
from seqplan.runtime.simulation.simulate_kinds import INDEX, Vector, kind_of
from seqplan.runtime.simulation.simulate_tracker import Change, Event, Mark


def _zeros() -> Vector:
    return np.zeros(len(INDEX), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Phase:
    """Bytes by kind, relative to the begin of the phase."""

    net: Vector
    """Held more at its end."""
    at_peak: Vector
    """Held more at the moment when the sum is largest; zeros where it never exceeds the begin."""

    def then(self, other: Phase) -> Phase:
        """Both, one after the other."""
        later = self.net + other.at_peak
        at_peak = later if later.sum() > self.at_peak.sum() else self.at_peak
        return Phase(self.net + other.net, at_peak)


EMPTY = Phase(_zeros(), _zeros())


def chain(phases: Iterable[Phase]) -> Phase:
    """All of them in order."""
    result = EMPTY
    for phase in phases:
        result = result.then(phase)
    return result


def phase_of(events: Iterable[Event]) -> Phase:
    """The changes of one phase added up."""
    net, at_peak = _zeros(), _zeros()
    total = highest = 0
    for event in events:
        if isinstance(event, Mark):
            continue
        net[INDEX[kind_of(event.record)]] += event.size_bytes
        total += event.size_bytes
        if total > highest:
            highest, at_peak = total, net.copy()
    return Phase(net, at_peak)


Named = tuple[tuple[object, ...], Phase]


def phases_of(events: Sequence[Event]) -> list[Named]:
    """The phases between marks, with their names."""
    starts = [number for number, event in enumerate(events) if isinstance(event, Mark)]
    found: list[Named] = []
    for start, stop in zip(starts, [*starts[1:], len(events)], strict=True):
        mark = events[start]
        assert isinstance(mark, Mark)
        found.append(
            (mark.name, phase_of(event for event in events[start:stop] if isinstance(event, Change)))
        )
    return found


ACTIONS = ("forward", "backward", "exchange")


class Recording:
    """The phases of one recorded step, and how the whole step is made of them."""

    def __init__(self, events: Sequence[Event], num_layers: int) -> None:
        """`events` of a step; a layer that was left out is as the recorded one before it."""
        self._num_layers = num_layers
        phases = phases_of(events)
        names = [name for name, _ in phases]
        first = next(number for number, name in enumerate(names) if name[0] in ACTIONS)
        last = names.index(("after actions",))
        self._before, self._after = _joined(phases[:first]), _joined(phases[last:])
        self._between = _joined(phases[first:last])
        self._actions: dict[tuple[object, ...], Phase] = {}
        number = first
        while number < last:
            stop = number + 1
            while names[stop][0] not in ACTIONS and stop < last:
                stop += 1
            made = [named for named in phases[number:stop] if named[0] != ("missing gradients",)]
            self._actions[names[number]] = self._whole(made)
            number = stop
        self._micro_batches = sum(name[0] == "forward" for name in names)

    def _whole(self, parts: Sequence[Named]) -> Phase:
        """One action with all its layers."""
        layers = sorted(name[1] for name, _ in parts if name[0] == "layer" and isinstance(name[1], int))
        following = dict(zip(layers, [*layers[1:], self._num_layers], strict=False))
        result = EMPTY
        for name, phase in parts:
            layer = name[1] if name[0] == "layer" else None
            for _ in range(following[layer] - layer if isinstance(layer, int) else 1):
                result = result.then(phase)
        return result

    def action(self, action: Action, num_microbatches: int) -> Phase:
        """The recorded phase that equals an action of the whole list."""
        if not isinstance(action, Compute):
            return self._actions["exchange", *(transfer.direction for transfer in action.transfers)]
        if action.micro_batch == num_microbatches - 1:
            return self._actions[action.kind, self._micro_batches - 1]
        return self._actions[action.kind, min(action.micro_batch, 1)]

    def kept_between(self, actions: Sequence[Action], num_microbatches: int) -> int:
        """Largest sum of activations and attention between two actions: what waits for its backward."""
        net, largest = self._before.net, 0
        for action in actions:
            net = net + self.action(action, num_microbatches).net
            largest = max(largest, int(net[INDEX["activations"]] + net[INDEX["attention"]]))
        return largest

    def step(self, actions: Sequence[Action], num_microbatches: int) -> Phase:
        """The whole step."""
        middle = chain(self.action(action, num_microbatches) for action in actions)
        # The recorded step ended with the gradients of all layers, and so must the one put together.
        assert (middle.net == self._between.net).all(), (middle.net, self._between.net)
        return self._before.then(middle).then(self._after)


def _joined(phases: Iterable[Named]) -> Phase:
    return chain(phase for _, phase in phases)
