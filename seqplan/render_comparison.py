"""Layouts beside one another in words: in which choices they differ, and what makes the one slower."""

from __future__ import annotations

from seqplan.planner.choosing.comparison import SAME_STEP, balance, rivals
from seqplan.planner.layout import Layout
from seqplan.planner.results import FreePick, ScoredLayout, Suggestion, TimeEstimate
from seqplan.render import duration, percent, plural
from seqplan.render_choices import choices, degrees, stage_layers


def why(answer: Suggestion, scored: ScoredLayout) -> str:
    """The pick against the runner-up, and against the best of other degrees where that is another."""
    words = [f"the fastest of {plural(answer.fitting, 'layout')} that fit"]
    for rival in rivals(answer.ranked):
        if rival.time is None or scored.time is None:
            continue
        name = degrees(rival.layout)
        if rival.layout.degrees == scored.layout.degrees:
            name = f"the same with {', '.join(differences(rival.layout, scored.layout))}"
        words.append(f"{name} {against(rival.time, scored.time)}")
    return "; ".join(words)


def against(step: TimeEstimate, other: TimeEstimate, takes: str = "takes") -> str:
    """`takes 3.5 % longer: bubble +1.41 s, tp -200 ms`: a step beside another, and the causes."""
    found = balance(step, other)
    if abs(found.slower) < SAME_STEP:
        return "is as fast"
    terms = ", ".join(f"{kind} {'+' if more > 0 else '-'}{duration(abs(more))}" for kind, more in found.terms)
    return f"{takes} {percent(abs(found.slower))} {'longer' if found.slower > 0 else 'less'}: {terms}"


def free_pick(scored: ScoredLayout, free: FreePick, name: str = "this layout") -> str:
    """What the search picks with nothing pinned, and what `scored` costs beside it."""
    pick = free.pick
    text = f"suggest picks {degrees(pick.layout)}, {choices(pick.layout)}"
    if pick.time is None:
        return text
    text += f": {duration(pick.time.step_time_s)} a step"
    if scored.time is None:
        return text
    runs = scored.legal and scored.fits and scored.runnable
    beside = against(scored.time, pick.time, "takes" if runs else "would take")
    return f"{text}; {name} {beside}{'' if runs else ', if it could be run'}"


def differences(layout: Layout, other: Layout) -> list[str]:
    """Fields of `layout` that are not those of `other`, each as `zero 2` or `tp sequence parallel off`."""
    found = []
    for name in Layout.model_fields:
        value = getattr(layout, name)
        if value == getattr(other, name):
            continue
        if name == "stage_layers":
            value = stage_layers(value)
        elif isinstance(value, tuple):
            value = ",".join(map(str, value))
        elif isinstance(value, bool):
            value = "on" if value else "off"
        found.append(f"{name.replace('_', ' ')} {'all' if value is None else value}")
    return found
