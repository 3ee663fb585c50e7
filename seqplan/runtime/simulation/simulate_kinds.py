"""What a storage of a simulated rank is for: one of the planner's MEMORY_KINDS.

What the simulation could say itself (a weight, a gradient, a logit) stands on the record. The rest goes by
where in the runtime it was made, and by whether it outlived its forward.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seqplan.planner.results import MEMORY_KINDS
from seqplan.runtime.simulation.simulate_tracker import Record, Site

Vector = NDArray[np.int64]
"""Bytes by MEMORY_KINDS."""

INDEX = {kind: number for number, kind in enumerate(MEMORY_KINDS)}

FSDP_KINDS: dict[Site, str] = {
    # Gathered weights in whatever form, and what is reduced.
    ("_fsdp_collectives", "foreach_all_gather"): "weights",
    ("_fsdp_collectives", "foreach_reduce"): "comm_buffers",
    ("_fsdp_param", "init_all_gather_outputs"): "weights",
    ("_fsdp_param", "alloc_all_gather_outputs"): "weights",
    ("_fsdp_param", "init_unsharded_param"): "weights",
}

FUNCTION_KINDS: dict[Site, str] = {
    ("pipeline", "_buffer"): "comm_buffers",
    ("tensor_parallel", "_all_gather_tokens"): "comm_buffers",
    ("data_parallel", "all_reduce_flat"): "comm_buffers",
    ("data_parallel", "__init__"): "comm_buffers",
    ("block_attention", "_math_scores"): "attention",
    ("block_attention", "_math_forward"): "attention",
    ("block_attention", "_math_backward"): "attention",
    ("block_attention", "_grouped"): "attention",
}

MODULE_KINDS: dict[str, str] = {
    "ring": "ring_buffers",
    "ring_travel": "ring_buffers",
    "ring_passes": "ring_buffers",
    "rsa_scores": "attention",
    "rsa_passes": "transient",
}

LOSS: tuple[Site, ...] = (
    ("vocab_parallel", "forward"),
    ("vocab_parallel", "backward"),
    ("vocab_parallel", "_difference"),
)
"""Made by the loss; what the embedding makes in the same module is not."""


def kind_of(record: Record) -> str:
    """The kind that somebody said, or the one of the place."""
    if record.kind is not None:
        return record.kind
    if record.site in FSDP_KINDS:
        return FSDP_KINDS[record.site]
    if record.site in LOSS:
        return "logits"
    if record.kept:
        return "activations"
    return FUNCTION_KINDS.get(record.site) or MODULE_KINDS.get(record.site[0], "transient")


def by_kind(vector: Vector) -> dict[str, float]:
    """As the JSON contract has it."""
    return {kind: float(vector[number]) for kind, number in INDEX.items()}
