"""FLOPs of the model: what MFU counts, in one place.

A multiply-add is 2 FLOPs. Forward: 2 for each weight that multiplies a token, and 4 x pairs x head size for
each head's scores and their product with V, where pairs are the (query, key) pairs that the mask lets
through: half of them when causal (the convention for MFU here; Megatron-LM counts them all). Backward is
twice that. Recomputation and the embedding's look-up are left out.
"""

from __future__ import annotations

from seqplan.planner.model_spec import ModelSpec

BACKWARD_PER_FORWARD = 2.0
"""Gradients of the input and of the weight: a matmul each."""

FLASH_BACKWARD_PER_FORWARD = 2.5
"""Fused attention computes the scores once more in backward: five matmuls for two (Dao 2307.08691, 2.3)."""


def attention_pairs(model: ModelSpec, seq_len: int, window: int | None) -> float:
    """(query, key) pairs of one sequence that a layer's mask lets through."""
    if window is not None and window < seq_len:
        # Causal: `window` keys for each query but the first ones. Both sides: half of the window on each.
        return float(seq_len * window - (window * window / 2 if model.causal else window * window / 4))
    return seq_len * seq_len / 2 if model.causal else float(seq_len * seq_len)


def mean_attention_pairs(model: ModelSpec, seq_len: int) -> float:
    """The same for the mean layer: models may mix windows and full attention."""
    if model.sliding_window is None or model.window_layers is None:
        return attention_pairs(model, seq_len, model.sliding_window)
    pairs = [attention_pairs(model, seq_len, model.window_of(layer)) for layer in range(model.num_layers)]
    return sum(pairs) / len(pairs)


def forward_flops_per_sequence(model: ModelSpec, seq_len: int) -> float:
    """Forward FLOPs of one sequence through the whole model."""
    weights = model.num_layers * model.layer_matmul_parameters + model.head_matmul_parameters
    attention = 4.0 * mean_attention_pairs(model, seq_len) * model.attention_size
    return 2.0 * weights * seq_len + model.num_layers * attention


def model_flops_per_step(model: ModelSpec, seq_len: int, global_batch_size: int) -> float:
    """FLOPs that MFU counts for one optimizer step: forward and backward of every sequence."""
    return (1.0 + BACKWARD_PER_FORWARD) * forward_flops_per_sequence(model, seq_len) * global_batch_size
