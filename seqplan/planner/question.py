"""Question: what the user asks (model, cluster, batch, trainer) and what he pins."""

from __future__ import annotations

from pydantic import Field

from seqplan.planner.cluster_spec import ClusterSpec
from seqplan.planner.implementation import ImplementationSpec
from seqplan.planner.layout import Attention, Kernel, Recompute, Schedule
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


class Pins(Spec):
    """Fields of the layout that the user fixed; None is free."""

    dp: int | None = None
    pp: int | None = None
    tp: int | None = None
    sp: int | None = None
    micro_batch_size: int | None = None
    attention: Attention | None = None
    kernel: Kernel | None = None
    schedule: Schedule | None = None
    num_virtual_stages: int | None = None
    recompute: Recompute | None = None
    recompute_layers: int | None = None
    zero_stage: int | None = None
    zero_shard_size: int | None = None
    tp_sequence_parallel: bool | None = None
    mesh_order: tuple[str, ...] | None = None
    stage_layers: tuple[int, ...] | None = None
