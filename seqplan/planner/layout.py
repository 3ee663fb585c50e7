"""Layout: how one training job is split; and why a layout is not allowed."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from seqplan.planner.spec import Spec

AXES: tuple[str, ...] = ("dp", "pp", "tp", "sp")
"""The parallel axes. No formula may assume that there are exactly these: an expert axis may join."""

Attention = Literal["none", "ring", "rsa"]
Kernel = Literal["flash", "efficient", "math"]
Schedule = Literal["none", "1f1b", "interleaved", "zbv", "gpipe"]
Recompute = Literal["none", "selective", "full"]


class Layout(Spec):
    """One complete choice. Degrees multiply to the world size."""

    dp: int = Field(ge=1, description="data-parallel replicas")
    pp: int = Field(ge=1, description="pipeline stages")
    tp: int = Field(ge=1, description="tensor-parallel ranks")
    sp: int = Field(ge=1, description="ring sequence-parallel ranks")
    micro_batch_size: int = Field(ge=1, description="sequences in one micro-batch of one dp rank")
    attention: Attention = Field(default="none", description="none: plain (sp = 1); ring; rsa")
    kernel: Kernel = Field(default="flash", description="what computes a block of attention")
    schedule: Schedule = Field(default="none", description="pipeline schedule; none where pp = 1")
    num_virtual_stages: int = Field(default=1, ge=1, description="interleaved chunks a rank")
    recompute: Recompute = "none"
    recompute_layers: int | None = Field(default=None, ge=0, description="how many of a stage's layers; None: all")
    zero_stage: Literal[0, 1, 2, 3] = 0
    zero_shard_size: int | None = Field(default=None, ge=1, description="ranks of dp x sp that share states; None: all")
    precision: Literal["fp32", "bf16", "fp16"]
    tp_sequence_parallel: bool = False
    mesh_order: tuple[str, ...] = Field(default=("pp", "dp", "sp", "tp"), description="outermost to innermost")
    stage_layers: tuple[int, ...] = Field(description="layers of each pipeline stage")

    @property
    def degrees(self) -> dict[str, int]:
        """Degree of each axis, in the order of AXES."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def world_size(self) -> int:
        return math.prod(self.degrees.values())
