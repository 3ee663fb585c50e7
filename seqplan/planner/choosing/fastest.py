"""The pick of a search by itself: the fastest layout that fits, without all that `suggest` says of it."""

from __future__ import annotations

from seqplan.planner.choosing.played_leaders import played_leaders
from seqplan.planner.choosing.scan import scan
from seqplan.planner.choosing.sensitivity import SEEN
from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import Layout
from seqplan.planner.layout_space import check_pins, trainer_choices
from seqplan.planner.question import Pins, Question


def fastest(question: Question, pins: Pins) -> Layout | None:
    """What `suggest` picks; None where nothing fits, or where the pins cannot be."""
    try:
        check_pins(question, pins)
    except SeqplanError:
        return None
    found = scan(question, pins, trainer_choices(question), top=SEEN).best
    return played_leaders(question, found, 1).layouts[0] if found else None
