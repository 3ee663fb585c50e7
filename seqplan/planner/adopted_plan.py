"""A plan as our runtime would run it: the same layout, with an estimate of this very run.

Another trainer keeps other tensors, so its estimate beside our measurement would compare two programs. What
only the other trainer can do is refused by the same rules as everywhere. A plan that was edited, or made by
another version, has an estimate of something else too.
"""

from __future__ import annotations

from seqplan.planner.errors import SeqplanError
from seqplan.planner.implementation import ImplementationSpec
from seqplan.planner.plan import Plan, make_plan, plan_warnings
from seqplan.planner.rules.legality import run_reasons
from seqplan.planner.search import score

RUNTIME = "seqplan"
"""The trainer that `seqplan run` is."""


def adopted(plan: Plan, ours: ImplementationSpec) -> tuple[Plan, str]:
    """The plan with our estimate, and the line that says so. SeqplanError: what we cannot run of it."""
    assert ours.name == RUNTIME
    question = plan.question(ours)
    broken = run_reasons(question, plan.layout)
    if broken:
        raise SeqplanError(
            f"planned for {plan.implementation}, and this runtime is {RUNTIME}: "
            f"{' '.join(reason.message for reason in broken)}",
            f"Run it with {plan.implementation}, or plan again with --implementation {RUNTIME}.",
        )
    text = (
        f"planned for {plan.implementation}; this runtime is {RUNTIME}: the estimate below is re-made for it."
    )
    return make_plan(question, score(question, plan.layout)), text


def up_to_date(plan: Plan, ours: ImplementationSpec) -> tuple[Plan, tuple[str, ...]]:
    """A plan of ours, and what changed since it was made; then with the estimate that this version makes."""
    changed = plan_warnings(plan, ours)
    if not changed:
        return plan, ()
    question = plan.question(ours)
    made_again = make_plan(question, score(question, plan.layout)).estimate
    said = "the planned figures of this run are estimated again."
    return plan.model_copy(update={"estimate": made_again}), (*changed, said)
