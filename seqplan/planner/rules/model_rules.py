"""The rules between the fields of a ModelSpec, all checked at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seqplan.planner.model_spec import ModelSpec


def broken_rules(model: ModelSpec) -> list[str]:
    """Every cross-field rule that does not hold, each with its numbers."""
    heads, kv = model.num_attention_heads, model.num_kv_heads
    broken = []
    if kv > heads:
        broken.append(f"num_kv_heads {kv} is more than num_attention_heads {heads}")
    elif heads % kv:
        broken.append(f"num_attention_heads {heads} is not a multiple of num_kv_heads {kv}")
    if model.embedding_size != model.hidden_size and model.embedding_projection == "none":
        broken.append(
            f"embedding_size {model.embedding_size} differs from hidden_size {model.hidden_size}"
            " but embedding_projection is none"
        )
    if model.position == "learned" and not model.position_rows:
        broken.append("position learned needs position_rows")
    if model.position not in ("learned", "relative") and model.position_rows:
        broken.append(f"position {model.position} has no table, but position_rows is {model.position_rows}")
    if model.position_rows and (model.max_position_embeddings or 0) > model.position_rows:
        broken.append(
            f"max_position_embeddings {model.max_position_embeddings} is more than"
            f" position_rows {model.position_rows}"
        )
    if model.position == "rope" and model.rotary_dim % 2:
        broken.append(
            f"rope rotates pairs, but rope_fraction {model.rope_fraction} of head_dim {model.head_dim}"
            f" is {model.rotary_dim}, an odd number"
        )
    if model.window_layers is not None and model.sliding_window is None:
        broken.append("window_layers is set but sliding_window is not")
    for field in ("window_layers", "rope_skip_layers"):
        beyond = [i for i in getattr(model, field) or () if not 0 <= i < model.num_layers]
        if beyond:
            broken.append(f"{field} names layer {beyond[0]}, but num_layers is {model.num_layers}")
    if model.norm.endswith("without_weights") and model.norm_bias:
        broken.append(f"norm {model.norm} has no bias, but norm_bias is true")
    if model.shared_norm and not model.parallel_block:
        broken.append("shared_norm needs parallel_block")
    if not model.first_attention_norm and (model.shared_layers or model.shared_norm):
        broken.append("first_attention_norm false does not go with shared layers or a shared norm")
    if model.head in ("discriminator", "classifier", "none") and model.tied_embeddings:
        broken.append(f"tied_embeddings is true, but head {model.head} has no vocabulary matrix")
    return broken
