"""What a layout typed in part leaves open: the defaults that it took, and the best that it could have had.

`explain --layout dp2,tp4` judges one layout, and every field that was not typed has its default there; a
default is no choice. So the search is asked too, with all that was typed pinned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import AXES, Layout
from seqplan.planner.question import Pins, Question
from seqplan.planner.results import ScoredLayout
from seqplan.planner.search import suggest
from seqplan.planner.spec import Spec


class Completion(Spec):
    """What was not typed of one layout."""

    defaults: dict[str, Any] = Field(description="fields that were not given, with what they took")
    best: ScoredLayout | None = Field(
        description="the fastest layout with all that was given; None: none is legal and fits"
    )


def completion(question: Question, layout: Layout, given: Mapping[str, Any]) -> Completion:
    """The defaults of `layout`, of which only `given` was typed, and the best layout with the same."""
    return Completion(defaults=defaults_taken(layout, given), best=best_with(question, layout, given))


def defaults_taken(layout: Layout, given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that were not given; those without effect in this layout, or that cover everything, left out."""
    idle = {name for name, value in layout if value is None}
    if layout.pp == 1:
        idle |= {"schedule", "num_virtual_stages", "stage_layers"}
    if layout.num_virtual_stages == 1:
        idle.add("num_virtual_stages")
    if layout.tp == 1:
        idle.add("tp_sequence_parallel")
    if layout.dp * layout.sp == 1:
        idle.add("zero_stage")
    return {name: value for name, value in layout if name not in idle and name not in given}


def best_with(question: Question, layout: Layout, given: Mapping[str, Any]) -> ScoredLayout | None:
    """The search's answer with the degrees of `layout` and everything else that was typed pinned."""
    typed = {name: value for name, value in given.items() if name in Pins.model_fields}
    pins = Pins(**{**{axis: getattr(layout, axis) for axis in AXES}, **typed})
    if question.train.precision == "auto" and "precision" in given:
        train = question.train.model_copy(update={"precision": given["precision"]})
        question = question.model_copy(update={"train": train})
    try:
        answer = suggest(question, pins, top=1)
    except SeqplanError:  # degrees that do not multiply to the devices; the layout's reasons say so
        return None
    return answer.pick or next(iter(answer.with_other_trainers), None)
