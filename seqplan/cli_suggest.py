"""What `suggest` adds to the search's answer for the flags that ask for more, and what it says it wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seqplan import profiles, render
from seqplan.cli_inputs import Asked
from seqplan.planner.choosing import free_pick, job, pareto
from seqplan.planner.choosing.what_forbids import has_legal_layout
from seqplan.planner.question import Pins, Question
from seqplan.planner.results import Suggestion


def with_what_was_asked(
    answer: Suggestion, asked: Asked, pins: Pins, tokens: int | None, with_front: bool
) -> Suggestion:
    """The answer with the whole training, the front, what pins cost, trainers that can, and what was read."""
    question, notes = asked.question, [*asked.notes]
    more: dict[str, Any] = {}
    if answer.pick is not None and answer.pick.time is not None:
        if tokens is not None:
            more["job"] = job.training_job(question, answer.pick.time.step_time_s, tokens)
        if with_front:
            more["pareto"] = pareto.pareto(question, pins)
        more["free_pick"] = free_pick.cost_of_pins(question, pins, answer.pick)
    else:
        if answer.broken_by_all:
            more["able_trainers"] = able_trainers(question, pins)
        if tokens is not None:
            notes.append(f"--tokens: no days and GPU-hours of {tokens:,} tokens, since {nothing(answer)}")
    said = {"notes": (*notes, *answer.notes), "warnings": (*asked.warnings, *answer.warnings)}
    return answer.model_copy(update=more | said)


def nothing(answer: Suggestion) -> str:
    """Why there is no pick."""
    return "no layout is legal" if answer.legal == 0 else "nothing fits"


def able_trainers(question: Question, pins: Pins) -> tuple[str, ...]:
    """The other built-in trainers that have a legal layout for this question."""
    found = []
    for name in profiles.implementation_names():
        if name != question.implementation.name:
            trainer = profiles.load_implementation(name)
            if has_legal_layout(question.model_copy(update={"implementation": trainer}), pins):
                found.append(name)
    return tuple(found)


def tell_written(output: Path, answer: Suggestion) -> None:
    """On stderr: the plan file, or why there is none, and whether one of an earlier run is there."""
    if answer.pick is not None:
        render.tell("written", [str(output)])
        return
    older = "; the file there is of an earlier run" if output.exists() else ""
    render.tell(f"not written, since {nothing(answer)}", [f"{output}{older}"])
