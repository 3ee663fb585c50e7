"""What the search picks with nothing pinned: the answer to "why not my layout?", and the price of pins."""

from __future__ import annotations

from seqplan.planner.choosing.fastest import fastest
from seqplan.planner.question import Pins, Question
from seqplan.planner.results import FreePick, ScoredLayout
from seqplan.planner.search import score

MOST_DEVICES = 512
"""Beyond, a search without pins costs a second and more, which nobody asked for who pinned."""


def free_pick(question: Question, instead: ScoredLayout) -> FreePick | None:
    """The pick of the same question with nothing pinned; None: it is this layout, or nothing fits."""
    layout = fastest(question, Pins())
    if layout is None or layout == instead.layout:
        return None
    pick, more = score(question, layout), {}
    if instead.time is not None and pick.time is not None:
        theirs = pick.time.by_kind
        more = {kind: seconds - theirs[kind] for kind, seconds in instead.time.by_kind.items()}
    return FreePick(pick=pick, more_by_kind=more)


def cost_of_pins(question: Question, pins: Pins, pick: ScoredLayout) -> FreePick | None:
    """The same beside a pick with pins, where the second search is cheap."""
    if not pins.given() or question.gpus > MOST_DEVICES:
        return None
    return free_pick(question, pick)
