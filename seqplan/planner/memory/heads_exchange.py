"""Tensors of heads split over sp (ulysses_degree > 1), beside those that each trainer's inventory lists.

Before attention every rank sends its tokens' q, k and v and receives all tokens of its group for 1/U of the
heads; afterwards the output goes back (DeepSpeed-Ulysses, arXiv 2309.14509). In elements an exchange changes
nothing, so the inventory's own rows for q, k, v and what the kernel keeps hold as they are; what comes on top
is the same in every trainer and stands here: the output in its second form, and what is sent and received.
"""

from __future__ import annotations

from seqplan.planner.activations import LayerRow, WorkingRow
from seqplan.planner.implementation import ImplementationSpec

KEPT: tuple[LayerRow, ...] = (
    LayerRow(
        name="attention output of this rank's tokens",
        elements="T * a * d",
        bytes="e",
        kind="activations",
        when="U > 1",
        note="input of the output projection; the kernel keeps the other form, all tokens of fewer heads",
    ),
)

WORKING: tuple[WorkingRow, ...] = (
    WorkingRow(
        name="q, k and v, or their gradients, as sent and as received",
        elements="2 * T * (a + 2 * k) * d",
        bytes="e",
        kind="comm_buffers",
        when="U > 1",
        at=("attention_forward", "attention_backward"),
        note="assumed beside a ring's buffers, though the one precedes the other: at most that",
    ),
)


def with_heads_exchange(trainer: ImplementationSpec) -> ImplementationSpec:
    """The trainer with these tensors in its inventory."""
    return trainer.model_copy(
        update={"layer": (*trainer.layer, *KEPT), "working": (*trainer.working, *WORKING)}
    )
