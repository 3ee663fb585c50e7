"""Every overlap that the time model counts: its name, what switches it off, and the sentence that says it.

An overlap is a field of TrainerTime, so a trainer's file can take it back; --no-overlap does the same for one
question. Where the device cannot compute and send at the same time (one core does both), none counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import Layout
from seqplan.planner.question import Question
from seqplan.planner.reading.integers import listed
from seqplan.planner.reading.quantity import Quantity
from seqplan.planner.timing.how_sure import how_sure
from seqplan.planner.timing.trainer_time import TrainerTime

SWITCHED_OFF = "switched off with --no-overlap"

OFF: dict[str, dict[str, Any]] = {
    "ring": {"ring_overlaps": False},
    "reduction": {"reduction_overlaps": False},
    "gather": {"gather_overlaps": False},
    "prefetch": {"prefetch_overlaps": False},
    "transfers": {"transfers_overlap": False},
    "tp": {"tp_exposed_share": Quantity(1.0, SWITCHED_OFF)},
}
"""What each name sets: hops of the ring, sums of gradients, gathers of ZeRO 1 and 2, gathers of ZeRO 3,
transfers between stages, collectives of tp."""


def without(time: TrainerTime, names: Iterable[str]) -> TrainerTime:
    """The costs of a trainer that does not hide what is named; `all` names everything."""
    given = tuple(names)
    unknown = [name for name in given if name not in (*OFF, "all")]
    if unknown:
        raise SeqplanError(f"no overlap is called {listed(unknown, 'and')};", f"use {listed((*OFF, 'all'))}.")
    changed: dict[str, Any] = {}
    for name in OFF if "all" in given else given:
        changed.update(OFF[name])
    return time.model_copy(update=changed)


def time_notes(question: Question, layout: Layout) -> tuple[str, ...]:
    """What the estimate assumes to run at the same time, what to be waited for, and how sure it is."""
    costs = question.implementation.time
    at_once = question.cluster.device.transfers_overlap
    notes: list[str] = []
    if layout.ulysses_degree > 1:
        notes.append("nothing hides the all-to-alls that split the heads over sp")
    if layout.sp > layout.ulysses_degree:
        if at_once and costs.ring_overlaps:
            notes.append("each ring hop runs behind the block in hand; only its excess is counted")
        else:
            notes.append("nothing hides the ring's hops")
    if layout.dp * layout.sp > 1:
        notes.append(_states(costs, at_once, layout))
    if layout.tp > 1:
        share = float(costs.tp_exposed_share)
        hidden = f"matmuls hide {100 * (1 - share):.0f} % of the tensor-parallel collectives in a node"
        notes.append(hidden if share < 1 else "nothing hides the tensor-parallel collectives")
    if layout.pp > 1:
        hides = costs.transfers_overlap and layout.schedule == "interleaved"
        what = "other chunks hide" if hides else "nothing hides"
        notes.append(f"{what} the transfers between stages; the slowest stage sets the pace")
        cluster = question.cluster
        if cluster.cores_per_node is not None and cluster.cores_per_node < cluster.gpus_per_node:
            notes.append("a stage that waits leaves its core to the others")
    return (*(f"assumed: {note}" for note in notes), *how_sure(question))


def _states(costs: TrainerTime, at_once: bool, layout: Layout) -> str:
    """Of the gradients' reduction and ZeRO's gathers; both have only the time when their links are free."""
    reduces, stage = at_once and costs.reduction_overlaps, layout.zero_stage
    if stage == 3:
        gathers = at_once and costs.prefetch_overlaps
        hidden = [*["gathers"] * gathers, *["reduce-scatter"] * reduces]
        if not hidden:
            return "nothing hides a layer's gathers and reduce-scatter"
        return f"each layer's {' and '.join(hidden)} run behind the computation of its neighbour"
    reduction = {
        0: "the reduction runs behind the last micro-batch's backward, but for its last bucket",
        1: "the reduction runs behind the last backward",
        2: "each micro-batch's reduction runs behind its backward",
    }[stage]
    parts = [reduction if reduces else "nothing hides the reduction of the gradients"]
    if stage > 0:
        gathers = at_once and costs.gather_overlaps
        parts.append("the gather behind the first forward" if gathers else "nothing hides the gather")
    return ", ".join(parts)
