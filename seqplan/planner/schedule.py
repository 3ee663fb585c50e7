"""Pipeline schedules as action lists: the runtime executes, the simulation walks, the time model plays them.

Communication between the computations is grouped: the transfers of one Exchange are posted together
(one batch_isend_irecv), which is what keeps a pair of ranks that send to each other from dead-locking
(Megatron-LM calls these the fused send/receive pairs of 1F1B).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seqplan.planner.schedule_orders import order

Direction = Literal["send_forward", "recv_forward", "send_backward", "recv_backward"]


@dataclass(frozen=True)
class Compute:
    """Run the forward or the backward of one micro-batch on this stage."""

    kind: Literal["forward", "backward"]
    micro_batch: int


@dataclass(frozen=True)
class Transfer:
    """One tensor over a stage boundary: activations go forward, their gradients backward."""

    direction: Direction
    micro_batch: int


@dataclass(frozen=True)
class Exchange:
    """Transfers that are posted together and waited for together."""

    transfers: tuple[Transfer, ...]


Action = Compute | Exchange


def computations(stage: int, num_stages: int, num_microbatches: int) -> list[Compute]:
    """Order of forwards and backwards of `stage` under 1F1B."""
    steps = order("1f1b", stage, num_stages, num_microbatches)
    return [Compute("forward" if step.kind == "forward" else "backward", step.micro_batch) for step in steps]


def one_f_one_b(stage: int, num_stages: int, num_microbatches: int) -> list[Action]:
    """The action list of one stage: its computations with the transfers between them, grouped.

    What a computation produces is sent, and what the next one needs is received, in one Exchange.
    """
    first, last = stage == 0, stage == num_stages - 1
    actions: list[Action] = []
    pending: list[Transfer] = []
    for compute in computations(stage, num_stages, num_microbatches):
        if compute.kind == "forward" and not first:
            pending.append(Transfer("recv_forward", compute.micro_batch))
        if compute.kind == "backward" and not last:
            pending.append(Transfer("recv_backward", compute.micro_batch))
        if pending:
            actions.append(Exchange(tuple(pending)))
            pending = []
        actions.append(compute)
        if compute.kind == "forward" and not last:
            pending.append(Transfer("send_forward", compute.micro_batch))
        if compute.kind == "backward" and not first:
            pending.append(Transfer("send_backward", compute.micro_batch))
    if pending:
        actions.append(Exchange(tuple(pending)))
    return actions


def forward_only(stage: int, num_stages: int, num_microbatches: int) -> list[Action]:
    """Evaluation: every micro-batch's forward in order, with its transfers."""
    actions: list[Action] = []
    for index in range(num_microbatches):
        if stage > 0:
            actions.append(Exchange((Transfer("recv_forward", index),)))
        actions.append(Compute("forward", index))
        if stage < num_stages - 1:
            actions.append(Exchange((Transfer("send_forward", index),)))
    return actions
