"""How sure an estimated time is: what published runs of the same trainer took, or that nobody has timed one.

The figures stand in the trainer's own file, because a plan must not wait until hundreds of runs are compared;
a test holds them to what `validate` computes.
"""

from __future__ import annotations

from collections.abc import Sequence

from seqplan.planner.question import Question
from seqplan.planner.timing.trainer_time import MeasuredTimes

FEWEST_FOR_NINE_OF_TEN = 10
"""Of fewer runs the largest error of nine of ten is the worst of all."""


def how_sure(question: Question) -> tuple[str, ...]:
    """A sentence for a user of the time; none for CPUs, whose profile is calibrated on the machine itself."""
    costs, device = question.implementation.time, question.cluster.device
    if device.kind == "cpu":
        return ()
    if costs.unmeasured:
        return (costs.unmeasured,)
    if not costs.measured:
        return ()
    here = [each for each in costs.measured if each.device == device.name]
    if here:
        return (f"{_told(here, question.implementation.name)} (seqplan validate)",)
    devices = dict.fromkeys(each.device for each in costs.measured)
    known = [
        _told([each for each in costs.measured if each.device == name], question.implementation.name)
        for name in devices
    ]
    return (f"no published run on {device.name}; {'; '.join(known)} (seqplan validate)",)


def _told(known: Sequence[MeasuredTimes], asked: str) -> str:
    """Of one trainer on one device: the runs that set no constant, then those that did."""
    first = known[0]
    whose = first.trainer if first.trainer == asked else f"{first.trainer} (whose costs {asked} has)"
    return f"times of trainer {whose} on {first.device}: {'; '.join(map(_figures, known))}"


def _figures(known: MeasuredTimes) -> str:
    which = f"that set {'' if known.fitted else 'no '}constants"
    median, most = f"{100 * known.median_error:.1f} %", f"{100 * known.p90_error:.0f} %"
    if known.runs == 1:
        return f"error {median} of the one published run {which}"
    bound = f"nine of ten within {most}" if known.runs >= FEWEST_FOR_NINE_OF_TEN else f"the worst {most}"
    return f"median error {median}, {bound}, of {known.runs} published runs {which}"
