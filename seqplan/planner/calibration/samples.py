"""What `seqplan calibrate` measured, as plain numbers: input of the curves, and of tests without a machine.

Every time is of one rank while all ranks of its node do the same, a mean over a window long enough to hold
many turns of the scheduler (four processes on two cores run by turns: a single short operation never sees
that), and then the median over rounds and ranks.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from seqplan.planner.cluster_spec import Kernel, TransferKind
from seqplan.planner.spec import Spec

Dtype = Literal["fp32", "fp16", "bf16"]
Transfer = TransferKind


class MatmulSample(Spec):
    """[rows, depth] x [depth, columns]."""

    dtype: Dtype
    rows: int = Field(ge=1)
    columns: int = Field(ge=1)
    depth: int = Field(ge=1)
    seconds: float = Field(gt=0, allow_inf_nan=False)


class AttentionSample(Spec):
    """One block of causal attention, by the kernel that training uses."""

    dtype: Dtype
    tokens: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    forward_flops: float = Field(gt=0, description="4 x pairs x head size, for every head of the batch")
    forward_s: float = Field(gt=0, allow_inf_nan=False)
    backward_s: float = Field(gt=0, allow_inf_nan=False)


class TrafficSample(Spec):
    """Bytes read and written by an operation that does little else."""

    kind: Literal["copy", "elementwise"]
    dtype: Dtype | None = Field(default=None, description="of elementwise work")
    moved_bytes: float = Field(gt=0)
    seconds: float = Field(gt=0, allow_inf_nan=False)


class TransferSample(Spec):
    """One collective, or a hop around a ring; `whole_bytes` as the time model counts them."""

    kind: Transfer
    ranks: int = Field(ge=2)
    whole_bytes: float = Field(gt=0, description="of the whole tensor, or of what one rank sends to the next")
    leaves_node: bool
    seconds: float = Field(gt=0, allow_inf_nan=False)


class Measurements(Spec):
    """All that was measured, and on what."""

    device_kind: Literal["cuda", "rocm", "cpu"]
    device_name: str
    architecture: str
    memory_bytes: float = Field(gt=0, description="of one rank")
    context_bytes: float = Field(ge=0)
    ranks_per_node: int = Field(ge=1)
    nodes: int = Field(ge=1)
    cores_per_node: int | None = Field(default=None, ge=1, description="CPUs: cores that the ranks shared")
    kernels: dict[Dtype, tuple[Kernel, ...]]
    matmuls: tuple[MatmulSample, ...]
    attention: tuple[AttentionSample, ...]
    traffic: tuple[TrafficSample, ...]
    launch_s: float = Field(gt=0, allow_inf_nan=False)
    transfers: tuple[TransferSample, ...]
    repeats: int = Field(ge=1)
    date: str
    software: str
