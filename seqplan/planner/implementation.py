"""ImplementationSpec: what a trainer supports and which tensors it keeps; read from profiles/implementations.

The inventory has lists for the time that a tensor lives: `states` (always); `micro_batch`, `layer`,
`embedding` and `head` (from a micro-batch's forward to its backward, so once for each one in flight: on
every stage, for each layer, on the first and on the last stage); and `working` (at named moments only).
memory_model.py adds them up; a trainer is described by its file alone.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from seqplan.planner.activations import LayerRow, TensorRow, WorkingRow
from seqplan.planner.layout import Attention, Kernel, Recompute, Schedule, StageBalance
from seqplan.planner.spec import Spec
from seqplan.planner.timing.trainer_time import TrainerTime
from seqplan.planner.train_spec import Optimizer


class Capabilities(Spec):
    """What the trainer can run; `suggest` proposes nothing else."""

    attention: tuple[Attention, ...]
    kernels: tuple[Kernel, ...]
    schedules: tuple[Schedule, ...]
    recompute: tuple[Recompute, ...]
    partial_recompute: bool = Field(
        default=False, description="recompute_layers: some of a stage's layers, not only all or none"
    )
    searches_recompute_layers: bool = Field(
        default=True, description="suggest tries each such number; false: none or all, unless one is pinned"
    )
    zero_stages: tuple[int, ...]
    precisions: tuple[str, ...]
    tp_sequence_parallel: tuple[bool, ...]
    hybrid_sharding: bool = Field(description="zero_shard_size smaller than dp x sp")
    uneven_stages: bool
    ulysses: bool = Field(default=False, description="heads split over sp by all-to-all: ulysses_degree > 1")
    stage_balance: StageBalance = Field(
        default="layers", description="what stages share evenly by default: layers, or matmuls with the head"
    )
    tp_copies_kv_heads: bool = Field(description="tp may exceed the kv heads; the copies are counted")
    chunked_head: bool = Field(default=False, description="head and loss in chunks, logits never whole")
    min_microbatches_per_stage: int = Field(description="num_microbatches >= this x pp")
    interleaves_whole_groups: bool = Field(
        default=True,
        description="interleaved: micro-batches pass the chunks in groups of pp, and their number is a "
        "multiple of pp (Narayanan et al. 2104.04473, 2.2; Megatron-LM stops otherwise)",
    )
    vocab_multiple: int = Field(
        ge=0,
        description="the vocabulary is padded to a multiple of this x tp; 0: never padded, tp must divide it",
    )
    optimizers: tuple[Optimizer, ...] = ("adamw",)
    gradient_bytes: tuple[Literal[2, 4], ...] = (4,)
    model_features: tuple[str, ...] = Field(
        default=(), description="what it runs beyond the plain transformer: names of model_features.FEATURES"
    )

    def padded_vocab(self, vocab_size: int, tp: Any) -> Any:
        """Rows of the vocabulary over all tp ranks, padding included; tp is a number or a column.

        Without padding, tp that does not divide it is illegal; its rows are rounded up all the same, so
        that such a layout can be shown.
        """
        multiple = max(self.vocab_multiple, 1) * tp
        return -(-vocab_size // multiple) * multiple


class ImplementationSpec(Spec):
    """One trainer: its capabilities and its inventory of tensors."""

    name: str
    source: str
    capabilities: Capabilities
    time: TrainerTime = Field(default_factory=TrainerTime, description="what its way of working costs")
    gradients_between_steps: bool = Field(
        default=True, description="gradients stay allocated when the optimizer has used them"
    )
    counts_cached_blocks: bool = Field(
        default=False, description="the inventory has what the allocator keeps, so no fragmentation is added"
    )
    states: tuple[TensorRow, ...] = ()
    micro_batch: tuple[TensorRow, ...] = ()
    layer: tuple[LayerRow, ...] = ()
    embedding: tuple[TensorRow, ...] = ()
    head: tuple[TensorRow, ...] = ()
    working: tuple[WorkingRow, ...] = ()
