"""RunOptions: what a run needs beyond the plan: how long, how fast, where, and on which nodes.

The plan fixes everything that decides memory and layout; nothing here may change them. The file imports
no torch, so that the command line can show the defaults without paying for it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from seqplan.planner.errors import SeqplanError
from seqplan.planner.spec import Spec

MakeTrainer = Callable[..., Any]
"""(plan, device, options) -> a Trainer; a function at the top level of a module, it travels by name."""


class RunOptions(Spec):
    """One run of a plan. Steps are counted from 1."""

    model_config = ConfigDict(allow_inf_nan=False)

    steps: int = Field(ge=1, description="optimizer steps")
    learning_rate: float = Field(default=3e-4, gt=0, description="the peak, reached after the warm-up")
    min_learning_rate: float = Field(default=0.0, ge=0, description="where the cosine ends")
    warmup_steps: int = Field(default=0, ge=0, description="steps of linear warm-up from zero")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW: decay of the first moment")
    beta2: float = Field(default=0.95, ge=0, lt=1, description="AdamW: decay of the second moment")
    adam_eps: float = Field(default=1e-8, gt=0, description="AdamW: added to the root of the second moment")
    weight_decay: float = Field(default=0.1, ge=0, description="AdamW: decoupled decay")
    clip_norm: float = Field(default=1.0, ge=0, description="largest global gradient norm; 0: no clipping")
    seed: int = Field(default=0, ge=0, description="of weights, sample order, masked tokens and dropout")
    log_every: int = Field(default=1, ge=1, description="steps between two lines off a terminal")
    output_dir: Path = Field(
        default=Path("seqplan-run"), description="where metrics.jsonl and summary.json go"
    )
    timeout_s: float = Field(
        default=600.0,
        gt=0,
        description="longest wait in a collective, and for other nodes to start",
    )
    nnodes: int | None = Field(default=None, ge=1, description="nodes of the run; default SLURM's, else 1")
    node_rank: int | None = Field(
        default=None, ge=0, description="this node's number; default SLURM's, else 0"
    )
    rdzv_endpoint: str | None = Field(default=None, description="HOST:PORT of node 0, the same on every node")
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto",
        description="auto: what the plan's cluster has; cpu: gloo on this CPU anyway",
    )

    @model_validator(mode="after")
    def _consistent(self) -> RunOptions:
        """Rules between fields, all broken ones at once."""
        broken = []
        if self.min_learning_rate > self.learning_rate:
            broken.append(
                f"min_learning_rate={self.min_learning_rate} is above learning_rate={self.learning_rate}"
            )
        if self.warmup_steps > self.steps:
            broken.append(f"warmup_steps={self.warmup_steps} is more than steps={self.steps}")
        if broken:
            raise SeqplanError("; ".join(broken) + ".", "Change the options that are named.")
        return self
