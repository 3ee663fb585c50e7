"""`suggest`: the best layout, the next ones, and why the others fall; `score`: one layout in full."""

from __future__ import annotations

import time

from seqplan.planner.choosing.beyond_trainer import faster_elsewhere
from seqplan.planner.choosing.notes import assumptions, layout_warnings, position_warning, vocab_padding
from seqplan.planner.choosing.placement import placement_lines
from seqplan.planner.choosing.played_leaders import played_leaders, told
from seqplan.planner.choosing.scaling import half_the_devices
from seqplan.planner.choosing.scan import memory_text, scan
from seqplan.planner.choosing.sensitivity import SEEN, WITHIN, sensitivity
from seqplan.planner.choosing.state_notes import states_note
from seqplan.planner.choosing.what_forbids import broken_by_all
from seqplan.planner.choosing.what_if import what_would_be_legal, what_would_fit
from seqplan.planner.layout import Layout
from seqplan.planner.layout_space import check_pins, trainer_choices
from seqplan.planner.memory_model import memory_estimate
from seqplan.planner.question import Pins, Question
from seqplan.planner.reading.typed_form import typed_flags
from seqplan.planner.results import (
    MemoryEstimate,
    PlayedLeaders,
    Reason,
    ScoredLayout,
    Suggestion,
    TimeEstimate,
)
from seqplan.planner.rules.legality import Verdict, verdict
from seqplan.planner.time_model import time_estimate
from seqplan.planner.timing.how_sure import how_sure

TIGHT_FRACTION = 0.03
"""Head-room below which a pick is called tight: estimate and simulation may differ by 3 % (the bound that
seqplan verify checks)."""

BEYOND_SHOWN = 3
"""Layouts of other trainers that are shown beside the pick."""


def score(question: Question, layout: Layout) -> ScoredLayout:
    """One layout with every broken rule, its memory of every stage and its time; legal or not."""
    found = verdict(question, layout)
    if not found.costable:
        return scored_layout(question, layout, found, None, None)
    memory, step = memory_estimate(question, layout), time_estimate(question, layout)
    return scored_layout(question, layout, found, memory, step)


def scored_layout(
    question: Question,
    layout: Layout,
    found: Verdict,
    memory: MemoryEstimate | None,
    step: TimeEstimate | None,
) -> ScoredLayout:
    """The parts of a score put together; memory and time only where they can be known."""
    reasons, fits = found.reasons, False
    if memory is not None:
        fits = all(stage.peak_bytes <= memory.limit_bytes for stage in memory.stages)
        if not fits:
            worst = memory.stages[memory.worst_stage]
            message = memory_text(worst.stage, worst.peak_bytes, memory.limit_bytes, worst.by_kind)
            reasons = (*reasons, Reason(rule="memory", message=message))
    return ScoredLayout(
        layout=layout,
        legal=found.legal,
        fits=fits,
        runnable=found.runnable,
        reasons=reasons,
        warnings=layout_warnings(question, layout),
        memory=memory,
        time=step,
    )


def suggest(question: Question, pins: Pins | None = None, top: int = 10) -> Suggestion:
    """Score every candidate that the pins leave; rank what fits; say what fell, and what would help."""
    start = time.perf_counter()
    pins = pins or Pins()
    check_pins(question, pins)
    choices = trainer_choices(question)
    found = scan(question, pins, choices, max(top, SEEN))
    others: tuple[ScoredLayout, ...] = ()
    would_fit: tuple[str, ...] = ()
    nearest: ScoredLayout | None = None
    if found.legal == 0:
        would_fit = what_would_be_legal(question, pins)
        if found.costable:
            costed = scan(question, pins, choices, top, runnable_only=False)
            others = tuple(score(question, layout) for layout in costed.best)
    elif found.fitting == 0:
        assert found.nearest is not None
        nearest = score(question, found.nearest)
        would_fit = what_would_fit(question, pins)
    leaders = played_leaders(question, found.best, top)
    ranked = tuple(score(question, layout) for layout in leaders.layouts[: max(top, 1)])
    if ranked and ranked[0].time is not None:
        others = _beyond(question, pins, ranked[0].time.step_time_s)
    warnings = ranked[0].warnings if ranked else tuple(filter(None, [position_warning(question)]))
    warnings += tight_pick(ranked, question.train.headroom_fraction)
    if ranked and ranked[0].time is not None:
        warnings += half_the_devices(question, pins, ranked[0].time)
    shown = ranked[:1] or tuple(filter(None, [nearest]))
    states = [states_note(question, one.layout, one.memory) for one in shown if one.memory is not None]
    padding = _padding(question, pins, ranked[0].layout.tp) if ranked else []
    placed = [f"links: {line}" for one in shown for line in placement_lines(question, one.layout, one.time)]
    played = told(found.best, leaders) if found.best else None
    near = leaders.within(WITHIN).of_one_split()
    assumed = (*assumptions(question), *how_sure(question))
    return Suggestion(
        pick=ranked[0] if ranked else None,
        ranked=ranked,
        candidates=found.candidates,
        legal=found.legal,
        fitting=found.fitting,
        rejected=found.rejected,
        would_fit=would_fit,
        nearest_miss=nearest,
        broken_by_all=broken_by_all(question, pins) if found.legal == 0 else (),
        with_other_trainers=others,
        sensitivity=sensitivity(question, near.layouts, near.corrections) if found.best else None,
        event_simulation=played,
        notes=(*assumed, *states, *placed, *padding, *_played(played), *_pinned(pins)),
        warnings=tuple(text for text in warnings if text not in padding),
        elapsed_s=time.perf_counter() - start,
    )


def _beyond(question: Question, pins: Pins, pick_s: float) -> tuple[ScoredLayout, ...]:
    """What the trainer cannot run and is faster than the pick, also when it is played."""
    beyond = faster_elsewhere(question, pins, pick_s, BEYOND_SHOWN)
    found = played_leaders(question, beyond, BEYOND_SHOWN)
    faster = zip(found.layouts, found.played_s, strict=True)
    return tuple(score(question, layout) for layout, seconds in faster if seconds < pick_s)


def tight_pick(ranked: tuple[ScoredLayout, ...], headroom: float) -> tuple[str, ...]:
    """A pick that leaves less memory free than estimates are good for, and the next one that does not.

    What the user keeps free (`headroom`) is free too.
    """
    if not ranked or ranked[0].memory is None or ranked[0].time is None:
        return ()
    used = [one.memory.peak_bytes / one.memory.limit_bytes for one in ranked if one.memory is not None]
    free = [1 - (1 - headroom) * share for share in used]
    if free[0] >= TIGHT_FRACTION:
        return ()
    text = f"The pick leaves {100 * free[0]:.1f} % of the memory free, less than an estimate is good for; "
    for number, (one, share) in enumerate(zip(ranked, free, strict=True), start=1):
        if share >= TIGHT_FRACTION and one.time is not None:
            slower = one.time.step_time_s / ranked[0].time.step_time_s - 1
            return (text + f"number {number} costs {100 * slower:.1f} % and leaves {100 * share:.0f} %.",)
    return (text + "--headroom 0.05 finds one that leaves more.",)


def _padding(question: Question, pins: Pins, tp: int) -> list[str]:
    """The padding of the vocabulary; where there is none, only to a user who asked for a tp."""
    padded = question.implementation.capabilities.padded_vocab(question.model.vocab_size, tp)
    asked = (pins.tp or 1) > 1
    return [vocab_padding(question, tp)] if asked or int(padded) != question.model.vocab_size else []


def _played(played: PlayedLeaders | None) -> list[str]:
    """What the event simulation of the leaders' pipelines changed."""
    return [f"{played.text[0].upper()}{played.text[1:]}"] if played is not None else []


def _pinned(pins: Pins) -> list[str]:
    """What the search was not free to choose."""
    given = typed_flags(pins.given())
    return [f"Pinned: {given}."] if given else []
