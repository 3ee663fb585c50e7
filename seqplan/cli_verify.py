"""`verify`, and what `suggest --verify` adds: the estimated memory of a layout beside the simulated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqplan.cli_options import JsonFlag

if TYPE_CHECKING:
    from seqplan.planner.layout import Layout
    from seqplan.planner.question import Question
    from seqplan.planner.verification import Verification

OUR_TRAINER = "seqplan"


def verify(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN.yaml", help="a plan file, from suggest -o")],
    as_json: JsonFlag = False,
) -> None:
    """Prove a plan's memory without a device.

    Runs the real training step of one rank of each pipeline stage on fake tensors and compares its peak, by
    kind, with the estimate. Ends with status 1 where they differ by more than 3 %.
    """
    from seqplan import profiles, render, render_verification
    from seqplan.planner.plan import load_plan, plan_warnings

    plan = load_plan(plan_file, profiles.load_implementation)
    require_our_trainer(plan.implementation)
    trainer = profiles.load_implementation(plan.implementation)
    question = plan.question(trainer)
    render.tell("warning", plan_warnings(plan, trainer))
    answer = simulated(question, plan.layout)
    render.tell("warning", answer.warnings)
    if as_json:
        render.show_json(answer)
    else:
        render_verification.show_verification(answer, question, plan.layout)
    if not answer.holds:
        raise typer.Exit(1)


def require_our_trainer(name: str) -> None:
    """SeqplanError where the layout is for a trainer that is not ours: asked before any work."""
    from seqplan.planner.errors import SeqplanError

    if name != OUR_TRAINER:
        raise SeqplanError(
            f"the layout is for {name}; only seqplan's own trainer can be simulated.",
            "Plan with --implementation seqplan.",
        )


def simulated(question: Question, layout: Layout) -> Verification:
    """Estimate and simulation of every stage."""
    from seqplan.runtime.simulate import verify as compare

    return compare(question, layout)
