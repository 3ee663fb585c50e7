"""TrainSpec: what one optimizer step trains on, in which precision, with which optimizer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from seqplan.planner.layout import LARGEST_COUNT
from seqplan.planner.reading.counts import Count
from seqplan.planner.spec import Spec

Precision = Literal["fp32", "bf16", "fp16", "fp8"]
"""Compute dtype. bf16 and fp16 keep fp32 master weights, fp32 Adam states and fp32 gradients; fp8 is bf16
whose linears multiply in float8: it changes the time of matmuls only."""

PRECISION_BYTES: dict[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 2}

Optimizer = Literal["adamw", "adamw-bf16", "adamw-8bit", "sgd", "adafactor"]

MOMENT_BYTES: dict[str, float] = {
    "adamw": 8,
    "adamw-bf16": 4,
    "adamw-8bit": 2 + 2 * 4 / 256,
    "sgd": 4,
    "adafactor": 0,
}
"""Bytes of the optimizer's states for one parameter, master weight not counted: two moments in fp32 or bf16;
two of one byte with an fp32 scale for each block of 256 (Dettmers et al. 2110.02861); SGD's fp32 momentum;
none of Adafactor, whose sums of rows and columns are counted apart (Shazeer and Stern 1804.04235)."""


class TrainSpec(Spec):
    """The batch and the numerics of one training job; nothing here depends on the layout."""

    seq_len: Count = Field(ge=1, le=LARGEST_COUNT, description="tokens of one sequence, over all sp ranks")
    global_batch_size: Count = Field(
        ge=1, le=LARGEST_COUNT, description="sequences in one optimizer step, over all dp ranks"
    )
    precision: Literal["auto", "fp32", "bf16", "fp16", "fp8"] = Field(
        default="auto", description="compute dtype; auto is the best that device and trainer both have"
    )
    optimizer: Optimizer = Field(
        default="adamw", description="adamw: fp32 moments; -bf16 and -8bit: smaller ones; sgd with momentum"
    )
    gradient_bytes: Literal[2, 4] = Field(default=4, description="bytes of an accumulated gradient")
    hidden_dropout: float = Field(
        default=0.0, ge=0.0, lt=1.0, description="after attention, MLP and embedding"
    )
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0, description="on attention probabilities")
    chunked_head: bool = Field(
        default=False, description="head and loss in chunks of tokens, so that the logits are never whole"
    )
    headroom_fraction: float = Field(
        default=0.0, ge=0.0, lt=1.0, description="share of the device memory that the user keeps free"
    )
