"""The answer of `verify`: estimated and simulated memory of every distinct stage, by kind, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from seqplan.planner.layout import Layout
from seqplan.planner.question import Question
from seqplan.planner.verification import DIFFERENCE_LIMIT, StageComparison, Verification
from seqplan.render import block, listing, percent, show, size, table, text
from seqplan.render_choices import degrees
from seqplan.render_suggestion import asked

if TYPE_CHECKING:
    from rich.console import Group


def show_verification(answer: Verification, question: Question, layout: Layout) -> None:
    """A table for each distinct stage, and whether the estimate holds."""
    head = block(f"Memory of {degrees(layout)}, simulated", [verdict(answer)], "bold")
    kernels = listing("Counted as on the GPU", answer.kernels)
    show([asked(question), head, *(_table(group) for group in distinct(answer.stages)), kernels])


def show_proof(answer: Verification) -> None:
    """Beneath a suggestion: the verdict, and the worst stage's figures."""
    worst = max(answer.stages, key=lambda stage: abs(stage.relative_difference))
    warnings = listing("Warnings", answer.warnings, "bold yellow")
    show([text(""), block("The pick, simulated", [verdict(answer)], "bold"), _table([worst]), warnings])


def verdict(answer: Verification) -> str:
    """One sentence on the worst stage."""
    worst = max(answer.stages, key=lambda stage: abs(stage.relative_difference))
    holds = "within" if answer.holds else "above"
    share, limit = signed(worst.relative_difference), percent(DIFFERENCE_LIMIT)
    return f"worst difference {share} at stage {worst.stage}, {holds} the limit of {limit}"


def distinct(stages: Sequence[StageComparison]) -> list[list[StageComparison]]:
    """Neighbouring stages with the same figures together."""
    groups: list[list[StageComparison]] = []
    for stage in stages:
        if groups and groups[-1][-1].model_copy(update={"stage": stage.stage}) == stage:
            groups[-1].append(stage)
        else:
            groups.append([stage])
    return groups


def signed(share: float) -> str:
    """A difference with its sign."""
    return ("+" if share >= 0 else "-") + percent(abs(share))


def _table(group: list[StageComparison]) -> Group:
    stage = group[0]
    estimate, simulated = stage.estimate, stage.simulated
    rows = [
        _row(kind.replace("_", " "), estimate.by_kind.get(kind, 0.0), held, simulated.allocated_bytes)
        for kind, held in simulated.by_kind.items()
        if held or estimate.by_kind.get(kind)
    ]
    rows.append(
        _row("allocated", estimate.allocated_bytes, simulated.allocated_bytes, simulated.allocated_bytes)
    )
    name = f"Stage {stage.stage}" if len(group) == 1 else f"Stages {stage.stage} to {group[-1].stage}"
    columns = ["", "estimate", "simulated", "difference", "of the peak"]
    return table(f"{name}, the fullest rank", columns, rows, left=("",))


def _row(name: str, estimate: float, simulated: float, whole: float) -> list[str]:
    difference = estimate - simulated
    return [name, size(estimate), size(simulated), size(difference), signed(difference / whole)]
