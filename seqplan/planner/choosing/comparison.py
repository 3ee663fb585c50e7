"""Two layouts of one question, by the seconds that differ: which causes make the one slower."""

from __future__ import annotations

from dataclasses import dataclass

from seqplan.planner.results import TIME_KINDS, ScoredLayout, TimeEstimate

SAME_STEP = 0.0005
"""A relative difference below which two steps are as fast: less than is printed."""

REST_AT_MOST = 0.25
"""Share of the difference that may be left unnamed. What is named then has the sign of the difference."""

MOST_TERMS = 4
"""Causes that are named; what they leave is said as the rest."""

REST = "rest"


@dataclass(frozen=True)
class Balance:
    """How much longer a step takes than another, and why."""

    slower: float
    """Of the other's step; below 0 where it is faster."""
    terms: tuple[tuple[str, float], ...]
    """Seconds more by cause: those that make the difference first, then those against it, each by size. They
    add up to the difference but for REST_AT_MOST of it."""


def balance(step: TimeEstimate, other: TimeEstimate) -> Balance:
    """Causes are named by size until they explain the difference, never only until the largest is named."""
    more = {kind: step.by_kind.get(kind, 0.0) - other.by_kind.get(kind, 0.0) for kind in TIME_KINDS}
    # Of the kinds, not of the totals: what is named and the rest then add up to it exactly.
    difference = sum(more.values())
    named: dict[str, float] = {}
    for kind in sorted(more, key=lambda kind: -abs(more[kind])):
        left = difference - sum(named.values())
        if abs(left) <= REST_AT_MOST * abs(difference) or more[kind] == 0.0:
            break
        if len(named) == MOST_TERMS:
            named[REST] = left
            break
        named[kind] = more[kind]
    terms = sorted(named.items(), key=lambda term: (term[1] * difference < 0, term[0] == REST, -abs(term[1])))
    return Balance(step.step_time_s / other.step_time_s - 1.0, tuple(terms))


def rivals(ranked: tuple[ScoredLayout, ...]) -> tuple[ScoredLayout, ...]:
    """Whom the pick is compared with: the runner-up, and if that has its degrees the first with others."""
    if len(ranked) < 2:
        return ()
    degrees = ranked[0].layout.degrees
    apart = [other for other in ranked[1:] if other.layout.degrees != degrees]
    alike = ranked[1].layout.degrees == degrees
    return (*(ranked[1:2] if alike else ()), *apart[:1])
