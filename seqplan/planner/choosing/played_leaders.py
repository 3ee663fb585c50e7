"""The leaders of a search in the order of their event simulation, not of the closed form that found them.

The search times every pipeline in closed form (pipeline_time.py). Its leaders are played event by event, with
each stage's own seconds, embedding and head on the ends and the exchanges between them; where the two differ,
the simulation counts, and it is said. Leaders of one pipeline are played together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqplan.planner.choosing.layout_table import tables_of
from seqplan.planner.choosing.ranking import rounded_time_s
from seqplan.planner.layout import Layout
from seqplan.planner.question import Question
from seqplan.planner.results import PlayedLeaders
from seqplan.planner.time_model import time_table

REACH = 1.08
"""A leader slower than so many times the last one that is shown hardly comes before it, and is not played:
closed form and simulation are within 2 % of one another, and within 6 % where the head lies on one chunk of a
stage that is short for it (test_event_simulation.py)."""

WORTH_TELLING = 0.001
"""A relative difference below this is none."""


@dataclass(frozen=True)
class Leaders:
    """Layouts with their step times, the fastest first."""

    layouts: list[Layout]
    closed_form_s: list[float]
    played_s: list[float]
    played: int
    """How many of them were played."""

    def within(self, factor: float) -> Leaders:
        """Those that take no more than so many times as long as the first."""
        if not self.layouts:
            return self
        count = sum(seconds <= factor * min(self.played_s) for seconds in self.played_s)
        return Leaders(self.layouts[:count], self.closed_form_s[:count], self.played_s[:count], self.played)

    def of_one_split(self) -> Leaders:
        """The first of those that differ in nothing but how the layers lie on the stages."""
        first: dict[Layout, int] = {}
        for place, layout in enumerate(self.layouts):
            first.setdefault(layout.model_copy(update={"stage_layers": ()}), place)
        kept = list(first.values())
        return Leaders(
            [self.layouts[place] for place in kept],
            [self.closed_form_s[place] for place in kept],
            [self.played_s[place] for place in kept],
            self.played,
        )

    @property
    def corrections(self) -> list[float]:
        """By how much each step is longer than in closed form."""
        return [played / closed for played, closed in zip(self.played_s, self.closed_form_s, strict=True)]


def played_leaders(question: Question, layouts: list[Layout], shown: int) -> Leaders:
    """The layouts, in the order of a search, sorted by their simulated step times; ties keep that order.

    `shown`: how many of them matter.
    """
    closed = np.zeros(len(layouts))
    tables = tables_of(layouts, question.train)
    for places, table in tables:
        closed[places] = time_table(question, table).step_time_s
    played = closed.copy()
    reach = REACH * np.sort(closed)[: max(shown, 1)][-1] if layouts else 0.0
    near = [place for place, layout in enumerate(layouts) if layout.pp > 1 and closed[place] <= reach]
    for places, table in tables:
        some = np.flatnonzero(np.isin(places, near))
        if len(some):
            part = table if len(some) == len(places) else table.take(some)
            played[np.array(places)[some]] = time_table(question, part, played=True).step_time_s
    order = [int(place) for place in np.argsort(rounded_time_s(played), kind="stable")]
    return Leaders(
        [layouts[place] for place in order],
        [float(closed[place]) for place in order],
        [float(played[place]) for place in order],
        len(near),
    )


def told(found: list[Layout], leaders: Leaders) -> PlayedLeaders | None:
    """What the simulation changed; None where none was played."""
    if not leaders.played:
        return None
    off = [abs(1 / correction - 1) for correction in leaders.corrections]
    differ = sum(each > WORTH_TELLING for each in off)
    moved = leaders.layouts != found
    new_pick = leaders.layouts[0] != found[0]
    count = leaders.played
    who = "1 leader with a pipeline was" if count == 1 else f"{count} leaders with pipelines were"
    text = f"{who} played event by event"
    if not differ:
        text += ": as in closed form"
    else:
        text += (
            f"; {differ} differ{'s' * (differ == 1)} from the closed form, by {100 * max(off):.1f} % at most"
        )
        if new_pick:
            text += (
                f", which makes the pick of {found[0].degrees_text} that of {leaders.layouts[0].degrees_text}"
            )
        else:
            text += ", which changes the order below the pick" if moved else ", which changes no place"
    return PlayedLeaders(
        played=leaders.played,
        differ=differ,
        largest_difference=max(off),
        pick_changed=new_pick,
        text=f"{text}.",
    )
