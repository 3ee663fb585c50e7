"""ImplementationSpec: what a trainer supports and which tensors it keeps; read from profiles/implementations."""

from __future__ import annotations

from pydantic import Field

from seqplan.planner.layout import Attention, Kernel, Recompute, Schedule
from seqplan.planner.spec import Spec


class Capabilities(Spec):
    """What the trainer can run; `suggest` proposes nothing else."""

    attention: tuple[Attention, ...]
    kernels: tuple[Kernel, ...]
    schedules: tuple[Schedule, ...]
    recompute: tuple[Recompute, ...]
    zero_stages: tuple[int, ...]
    precisions: tuple[str, ...]
    tp_sequence_parallel: tuple[bool, ...]
    hybrid_sharding: bool = Field(description="zero_shard_size smaller than dp x sp")
    uneven_stages: bool
    tp_copies_kv_heads: bool = Field(description="tp may exceed the kv heads; the copies are counted")
    min_microbatches_per_stage: int = Field(description="num_microbatches >= this x pp")
    vocab_multiple: int = Field(
        ge=0, description="the vocabulary is padded to a multiple of this x tp; 0: never padded, tp must divide it"
    )
    model_features: tuple[str, ...] = Field(
        default=(), description="what it runs beyond the plain transformer: names of model_features.FEATURES"
    )


class ImplementationSpec(Spec):
    """One trainer. The inventory of kept tensors joins here (activations.py)."""

    name: str
    source: str
    capabilities: Capabilities
