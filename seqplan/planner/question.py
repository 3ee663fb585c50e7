"""Question: what the user asks (model, cluster, batch, trainer) and what he pins."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from pydantic import Field, field_validator, model_validator

from seqplan.planner.cluster_spec import ClusterSpec
from seqplan.planner.errors import SeqplanError
from seqplan.planner.implementation import ImplementationSpec
from seqplan.planner.layout import (
    AXES,
    DEFAULT_MESH_ORDER,
    LARGEST_DEGREE,
    Attention,
    Kernel,
    Recompute,
    Schedule,
)
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.spec import Spec
from seqplan.planner.train_spec import TrainSpec


class Question(Spec):
    """One planning problem. `gpus` is the world size, at most the cluster's or a multiple of its nodes."""

    model: ModelSpec
    cluster: ClusterSpec
    gpus: int = Field(ge=1)
    train: TrainSpec
    implementation: ImplementationSpec
    full_cluster: ClusterSpec | None = Field(
        default=None, description="before it was cut to part of a node: what more devices would be taken from"
    )

    @model_validator(mode="after")
    def _sane(self) -> Question:
        if self.gpus > LARGEST_DEGREE:
            raise SeqplanError(
                f"gpus={self.gpus} is more than {LARGEST_DEGREE}.", "Give the number of devices."
            )
        return self

    @cached_property
    def usable_precisions(self) -> tuple[str, ...]:
        """Compute dtypes that device and trainer both have, fastest first; fp32 if others gain nothing."""
        device, trainer = self.cluster.device, self.implementation.capabilities
        peaks: dict[str, float] = {name: float(peak) for name, peak in device.peak_flops_per_s.items()}
        order = [name for name in ("fp32", "bf16", "fp16") if name in trainer.precisions and name in peaks]
        usable = [name for name in order if device.kernels(name, 1)]
        return tuple(sorted(usable, key=lambda name: -peaks[name]))

    @cached_property
    def precision(self) -> str:
        """The compute dtype: what the user asked for, or the best that device and trainer both have."""
        if self.train.precision != "auto":
            return self.train.precision
        return self.usable_precisions[0] if self.usable_precisions else "fp32"


class Pins(Spec):
    """Fields of the layout that the user fixed; None is free."""

    dp: int | None = Field(default=None, ge=1)
    pp: int | None = Field(default=None, ge=1)
    tp: int | None = Field(default=None, ge=1)
    sp: int | None = Field(default=None, ge=1)
    micro_batch_size: int | None = Field(default=None, ge=1)
    attention: Attention | None = None
    ulysses_degree: int | None = Field(default=None, ge=1)
    kernel: Kernel | None = None
    schedule: Schedule | None = None
    num_virtual_stages: int | None = Field(default=None, ge=1)
    recompute: Recompute | None = None
    recompute_layers: int | None = Field(default=None, ge=0)
    zero_stage: int | None = Field(default=None, ge=0, le=3)
    zero_shard_size: int | None = Field(default=None, ge=1)
    tp_sequence_parallel: bool | None = None
    mesh_order: tuple[str, ...] | None = None
    stage_layers: tuple[int, ...] | None = None

    @field_validator("mesh_order")
    @classmethod
    def _names_each_axis(cls, order: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Anything else is a slip of the pen, not a layout to cost."""
        if order is not None and sorted(order) != sorted(AXES):
            raise ValueError(f"name each axis once, outermost first, as in {','.join(DEFAULT_MESH_ORDER)}")
        return order

    def given(self) -> dict[str, Any]:
        """The pinned fields alone."""
        return self.model_dump(exclude_none=True)
