"""Would the pick stay the pick if a rate were 20 % lower or higher?

Rates of links and devices are the least certain numbers of a plan. Memory does not depend on them, so only
the leaders' times change: those of the best SEEN that are WITHIN reach are timed again under each change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from seqplan.planner.activations import Floats
from seqplan.planner.choosing.layout_table import LayoutTable, tables_of
from seqplan.planner.layout import Layout
from seqplan.planner.question import Question
from seqplan.planner.reading.quantity import Quantity
from seqplan.planner.reading.typed_form import typed_flags
from seqplan.planner.results import Sensitivity, SensitivityChange
from seqplan.planner.time_model import time_table

SEEN = 24
"""Leaders that are timed again."""

SMALL = 0.01
"""Assumed: a correction up to this stays; leaders with a larger one are played again under a change."""

FACTORS = (0.8, 1.2)

WITHIN = 1.25
"""Times the pick's step: a step moves by no more than the rate, and 1 / 0.8 is the most."""

LEAST_GAIN = 0.005
"""A rival less than so much faster than the pick is as fast."""


def sensitivity(
    question: Question, leaders: list[Layout], corrections: Sequence[float] | None = None
) -> Sensitivity:
    """How the first of the leaders fares under each change.

    `corrections`: by how much each leader's event simulation is longer than its closed form; a small one is
    taken to stay so, which saves playing every leader under every change.
    """
    factors = np.ones(len(leaders)) if corrections is None else np.array(corrections)
    tables = tables_of(leaders, question.train)  # they serve every change of rates
    changes, names = [], []
    for name, factor, changed in _changes(question):
        names += [name] * (name not in names)
        closed = _times(changed, tables)
        seconds = factors * closed
        # What waits for its neighbours is longer by a time of its own, not by a share.
        far = (abs(factors - 1) > SMALL) & (np.minimum(closed, seconds) <= seconds[0])
        far[0] |= far.any()  # the pick is compared with them
        again = np.flatnonzero(far)
        if len(again):
            played = tables_of([leaders[place] for place in again], question.train)
            seconds[again] = _times(changed, played, played=True)
        best = int(np.argmin(seconds))
        gain = 1.0 - seconds[best] / seconds[0]
        if gain >= LEAST_GAIN:
            changes.append(
                SensitivityChange(rate=name, factor=factor, layout=leaders[best], gain_fraction=float(gain))
            )
    if not changes:
        text = f"stable: the pick stays first with the {_listed(names)} 20 % lower or higher"
        return Sensitivity(verdict="stable", text=text, changes=())
    told = [_told(change, leaders[0]) for change in changes]
    return Sensitivity(verdict="close call", text=f"close call: {'; '.join(told)}", changes=tuple(changes))


def _changes(question: Question) -> Iterator[tuple[str, float, Question]]:
    cluster = question.cluster
    links = [("intra_node", "links inside nodes", cluster.gpus_per_node > 1 and question.gpus > 1)]
    links.append(("inter_node", "links between nodes", question.gpus > cluster.gpus_per_node))
    for factor in FACTORS:
        for field, name, used in links:
            if used:
                link = getattr(cluster, field)
                slower = link.model_copy(update={"bytes_per_s": _scaled(link.bytes_per_s, factor)})
                yield name, factor, _with(question, **{field: slower})
        device = cluster.device
        peaks = {name: _scaled(rate, factor) for name, rate in device.peak_flops_per_s.items()}
        changed = device.model_copy(update={"peak_flops_per_s": peaks})
        yield "devices' matmuls", factor, _with(question, device=changed)


def _with(question: Question, **fields: Any) -> Question:
    return question.model_copy(update={"cluster": question.cluster.model_copy(update=fields)})


def _scaled(rate: float, factor: float) -> Quantity:
    return Quantity(float(rate) * factor, f"{factor:g} of the profile's, to see what changes")


def _times(question: Question, tables: list[tuple[list[int], LayoutTable]], played: bool = False) -> Floats:
    """Step times in the order of the layouts."""
    seconds = np.zeros(sum(len(places) for places, _ in tables))
    for places, table in tables:
        seconds[places] = time_table(question, table, played).step_time_s
    return seconds


def _told(change: SensitivityChange, pick: Layout) -> str:
    """One change in words: by its degrees, or by what else differs."""
    way = "lower" if change.factor < 1 else "higher"
    rival = change.layout
    name = rival.degrees_text
    if rival.degrees == pick.degrees:
        differ = {field: value for field, value in rival if value != getattr(pick, field)}
        name = f"the same with {typed_flags(differ)}"
    share, gain = 100 * abs(1 - change.factor), 100 * change.gain_fraction
    return f"with the {change.rate} {share:.0f} % {way}, {name} is {gain:.1f} % faster"


def _listed(names: list[str]) -> str:
    return " or the ".join([", the ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
