"""Choices that nothing beats in time, memory and GPUs at once: what less memory or fewer GPUs cost in time.

Each point is the fastest layout under one limit, found by a search of its own: of all GPUs with more and
more of the memory kept free, and of fewer GPUs (batch and sequence as asked). Of those, what another point
beats in all three is left out.
"""

from __future__ import annotations

from seqplan.planner.choosing.fastest import fastest
from seqplan.planner.question import Pins, Question
from seqplan.planner.results import ParetoPoint
from seqplan.planner.search import score

FREE_FRACTIONS = (0.25, 0.5, 0.75)
"""Shares of the device memory kept free."""

DIVISORS = (2, 4)
"""How many times fewer GPUs are tried."""


def pareto(question: Question, pins: Pins) -> tuple[ParetoPoint, ...]:
    """The points, fastest first."""
    asked = [question]
    asked += [
        _spared(question, share) for share in FREE_FRACTIONS if share > question.train.headroom_fraction
    ]
    asked += [_on(question, question.gpus // by) for by in DIVISORS if question.gpus % by == 0]
    found = [point for each in asked if (point := _fastest(each, pins)) is not None]
    kept = [one for one in found if not any(_beats(other, one) for other in found)]
    return tuple(sorted(dict.fromkeys(kept), key=lambda point: point.step_time_s))


def _spared(question: Question, share: float) -> Question:
    train = question.train.model_copy(update={"headroom_fraction": share})
    return question.model_copy(update={"train": train})


def _on(question: Question, gpus: int) -> Question:
    return question.model_copy(update={"gpus": gpus})


def _fastest(question: Question, pins: Pins) -> ParetoPoint | None:
    best = fastest(question, pins)
    if best is None:
        return None
    scored = score(question, best)
    assert scored.time is not None
    assert scored.memory is not None
    seconds = scored.time.step_time_s
    return ParetoPoint(
        gpus=question.gpus,
        layout=best,
        step_time_s=seconds,
        peak_bytes=scored.memory.peak_bytes,
        gpu_hours_a_step=seconds * question.gpus / 3600,
    )


def _beats(one: ParetoPoint, other: ParetoPoint) -> bool:
    """At least as good in all three, and not the same."""
    ours = (one.step_time_s, one.peak_bytes, one.gpus)
    theirs = (other.step_time_s, other.peak_bytes, other.gpus)
    return ours != theirs and all(a <= b for a, b in zip(ours, theirs, strict=True))
