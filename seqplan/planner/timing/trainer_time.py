"""TrainerTime: what a trainer's own way of working costs, by name, beside what the hardware costs.

Read from the `time:` section of profiles/implementations. A default is what a well-built trainer costs
(nothing), so a trainer's file says only what sets it apart, each number with its source.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from seqplan.planner.reading.quantity import Quantity, ShareQuantity
from seqplan.planner.spec import Spec

NOTHING = Quantity(0.0, "none known")
AS_COUNTED = Quantity(1.0, "as counted: every operation between the matmuls in one kernel")


class MeasuredTimes(Spec):
    """Errors of the step times of a trainer's published runs on one device, as `validate` finds them."""

    trainer: str = Field(description="whose runs; one with the same costs may stand for another")
    device: str
    fitted: bool = Field(description="constants of the trainer, the device or a link were set on these runs")
    runs: int = Field(ge=1)
    median_error: float = Field(ge=0)
    p90_error: float = Field(ge=0, description="nine of ten runs have no larger one")


class TrainerTime(Spec):
    """Costs of one trainer. All are seconds on the critical path or factors of what the model counts."""

    unmeasured: str = Field(default="", description="said with every time on a GPU: what nobody has measured")
    measured: tuple[MeasuredTimes, ...] = Field(
        default=(), description="said with every time on a GPU: how far off it was where somebody measured"
    )
    elementwise_factor: Quantity = Field(
        default=AS_COUNTED, description="memory traffic between the matmuls over that of fused kernels"
    )
    loss_forward_bytes: Quantity = Field(
        default=Quantity(4.0, "two reads of the bf16 logits: maximum, then exponentials in cached chunks"),
        description="memory traffic of the loss for each bf16 logit, forward; fp32 twice that",
    )
    loss_backward_bytes: Quantity = Field(
        default=Quantity(6.0, "read, gradient written, and read by the cast"),
        description="the same of the backward",
    )
    host_layer_s: Quantity = Field(
        default=NOTHING, description="least time of one layer's forward: what the host needs to issue it"
    )
    host_layer_backward_s: Quantity = Field(default=NOTHING, description="the same of the backward")
    tp_step_beside_transfers_s: Quantity = Field(
        default=NOTHING,
        description="the host's wait at each ring step of a tensor-parallel collective where stages send "
        "over the network",
    )
    transfers_split_over_tp: bool = Field(
        default=False,
        description="each tp rank sends its share over a stage boundary and gathers the rest inside the node",
    )
    transfers_overlap: bool = Field(
        default=False,
        description="interleaved: sends between stages run behind the other chunks' computation",
    )
    steps_overlap: bool = Field(
        default=False,
        description="zero-bubble schedules: a stage begins its next step before the others have ended this "
        "one, as the gradients' norm is checked afterwards (2401.10241, 4)",
    )
    unsharded_transfers_s: Quantity = Field(
        default=NOTHING,
        description="ZeRO 0 with dp > 1: fixed time of each micro-batch where stages send over the network",
    )
    micro_batch_s: Quantity = Field(
        default=NOTHING, description="fixed time of each micro-batch on each stage"
    )
    stage_transfer_s: Quantity = Field(
        default=NOTHING, description="fixed time of each send and receive between stages, beside the link's"
    )
    step_s: Quantity = Field(default=NOTHING, description="fixed time of each step: data, logging, clipping")
    memory_pressure_share: ShareQuantity = Field(
        default=Quantity(1.0, "none known"),
        description="share of the device's memory beyond which the allocator starts to free and ask again",
    )
    memory_pressure_factor: Quantity = Field(
        default=Quantity(1.0, "none known"), description="step time over what it is below that share"
    )
    ring_overlaps: bool = Field(
        default=True, description="each hop of the ring runs behind the block of attention in hand"
    )
    ring_gradients_in_compute_dtype: bool = Field(
        default=False,
        description="gradients of K and V go round the ring in the compute dtype, not in float32",
    )
    prefetch_overlaps: bool = Field(
        default=True, description="ZeRO 3: a layer's gathers run behind the computation of its neighbour"
    )
    reduction_overlaps: bool = Field(
        default=True, description="the gradients' reduction runs behind the backward"
    )
    reduction_behind: Literal["backward", "micro_batch"] = Field(
        default="backward",
        description="ZeRO 2: what hides the reduction of a micro-batch's gradients: its own backward, or all "
        "that the stage computes until the next backward, as nothing needs the sums before the step's end",
    )
    gather_overlaps: bool = Field(
        default=True, description="ZeRO 1 and 2: the weights' gather runs behind the first forward"
    )
    matmul_sums_gradients: bool = Field(
        default=False,
        description="the matmul that makes a weight's gradient adds it to the float32 one itself, not in a "
        "pass over memory of its own",
    )
    tp_exposed_share: Quantity = Field(
        default=Quantity(1.0, "assumed: nothing hides the tensor-parallel collectives"),
        description="share of tensor-parallel collectives in a node that nothing hides; between nodes: all",
    )
    rsa_attention_factor: Quantity = Field(
        default=Quantity(1.0, "assumed: as fast as attention on one device"),
        description="time of ring self-attention's own matmuls and softmax over that of plain attention",
    )
    selective_repeats: Literal["core_attention", "operations"] = Field(
        default="core_attention",
        description="operations: every second matmul and all that is memory-bound, but no attention",
    )
