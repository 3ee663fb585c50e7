"""Fewer devices than the power of two that fits: whole nodes between it and what was too few, by bisection.

Fitting is not strictly monotone in the number of devices (an odd number of nodes has few layouts), so what is
found is no minimum: it is the fewest of those that were tried, and they are told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from seqplan.planner.cluster_spec import ClusterSpec
from seqplan.planner.reading.integers import listed

Found = TypeVar("Found")

STEPS = 4
"""Numbers that are tried: they leave a sixteenth of the doubling in doubt, and the first are round ones."""


@dataclass(frozen=True)
class Fewest(Generic[Found]):
    """The fewest devices that fit of those tried."""

    gpus: int
    found: Found
    too_few: tuple[int, ...]
    """What was tried and does not fit, all below `gpus`."""

    @property
    def told(self) -> str:
        """`not on 64 or 80`; nothing where every number tried fits."""
        return f"not on {listed(self.too_few)}" if self.too_few else ""


def fewest_between(
    cluster: ClusterSpec, too_few: int, enough: int, found: Found, at: Callable[[int], Found | None]
) -> Fewest[Found]:
    """Bisects between `too_few`, which has nothing that fits, and `enough`, which has `found`."""
    unit = cluster.gpus_per_node if enough > cluster.gpus_per_node else 1
    failed = [too_few]
    for _ in range(STEPS):
        middle = (failed[-1] + enough) // 2 // unit * unit
        if middle <= failed[-1]:
            break
        better = at(middle)
        if better is None:
            failed.append(middle)
        else:
            enough, found = middle, better
    return Fewest(enough, found, tuple(failed))
