"""The smallest cluster that fits: the fewest devices on which each family of layouts trains a given batch.

Length and batch are given here, and gradient accumulation is free, as in `suggest`. The numbers of devices
are tried from below, each by scoring its layouts; then whole nodes between the first that fits and the one
before, unless the user named the numbers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from seqplan.planner.choosing.between import Fewest, fewest_between
from seqplan.planner.choosing.notes import assumptions
from seqplan.planner.choosing.scan import scan
from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import Layout
from seqplan.planner.layout_space import check_pins, trainer_choices
from seqplan.planner.limits import check_families, device_counts, family_pins, on_devices
from seqplan.planner.memory_model import memory_estimate
from seqplan.planner.question import Pins, Question
from seqplan.planner.spec import Spec


class SmallestCluster(Spec):
    """The fewest devices of one family; null where none of those tried is enough."""

    family: str
    gpus: int | None
    too_few: tuple[int, ...] = Field(default=(), description="numbers of devices below that were tried last")
    layout: Layout | None = Field(default=None, description="the fastest there")
    peak_bytes: float | None = None
    limit_bytes: float | None = None


class FewestDevices(Spec):
    """The answer of `limits` where both the length and the batch are given."""

    schema_: Literal["seqplan-json/1"] = Field(default="seqplan-json/1", serialization_alias="schema")
    searched: Literal["gpus"] = "gpus"
    tried: tuple[int, ...] = Field(description="by every family, from below until one fits")
    smallest: tuple[SmallestCluster, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    elapsed_s: float


def fewest_devices(
    question: Question, pins: Pins, families: Sequence[str], devices: Sequence[int] = ()
) -> FewestDevices:
    """Each family's smallest number of devices that fits: of `devices`, or of device_counts and between."""
    start = time.perf_counter()
    check_families(families)
    counts = tuple(sorted(devices)) or device_counts(question, families)
    found = tuple(_smallest(question, pins, family, counts, bool(devices)) for family in families)
    return FewestDevices(
        tried=counts, smallest=found, notes=assumptions(question), elapsed_s=time.perf_counter() - start
    )


def _smallest(
    question: Question, pins: Pins, family: str, counts: Sequence[int], only_these: bool
) -> SmallestCluster:
    has = replace(trainer_choices(question), partial_recompute=False, hybrid_sharding=False)
    chosen = family_pins(pins, family)

    def best_on(gpus: int) -> Layout | None:
        asked = on_devices(question, gpus)
        try:
            check_pins(asked, chosen)
        except SeqplanError:
            return None  # the pinned degrees need another number of devices
        best = scan(asked, chosen, has, top=1).best
        return best[0] if best else None

    for place, gpus in enumerate(counts):
        layout = best_on(gpus)
        if layout is None:
            continue
        too_few = counts[place - 1 : place] if place else ()
        least = Fewest(gpus, layout, tuple(too_few))
        if too_few and not only_these:
            least = fewest_between(question.cluster, too_few[0], gpus, layout, best_on)
        memory = memory_estimate(on_devices(question, least.gpus), least.found)
        return SmallestCluster(
            family=family,
            gpus=least.gpus,
            too_few=least.too_few,
            layout=least.found,
            peak_bytes=memory.peak_bytes,
            limit_bytes=memory.limit_bytes,
        )
    return SmallestCluster(family=family, gpus=None)
