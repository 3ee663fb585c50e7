"""What a model needs of a trainer beyond the plain transformer.

The plain transformer, which every trainer is taken to run: a decoder with norms before each block, or an
encoder with norms before or after; LayerNorm or RMSNorm, learned positions or full RoPE, biases, tied
embeddings. PLAIN lists the plain values of every field of ModelSpec that changes the maths. A field with
another value is a feature under its name, which a trainer has only if its capabilities say so: a field that
is added to ModelSpec and forgotten here fails a test.
"""

from __future__ import annotations

from typing import Any

from seqplan.planner.model_spec import ModelSpec

PLAIN: dict[str, tuple[Any, ...]] = {
    "embedding_projection": ("none",),
    "output_projection": (False,),
    "embedding_scale": (1.0,),
    "norm": ("layernorm", "rmsnorm"),
    "norm_position": ("pre", "post"),
    "norm_weight_plus_one": (False,),
    "norm_on_residual": (False,),
    "first_attention_norm": (True,),
    "qk_norm": ("none", "per_head"),
    "qk_norm_bias": (False,),
    "position": ("learned", "rope"),
    "rope_theta_window": (None,),
    "rope_fraction": (1.0,),
    "rope_interleaved": (False,),
    "rope_skip_layers": ((),),
    "attention_softcap": (None,),
    "qkv_clip": (None,),
    "activation": ("gelu", "gelu_tanh", "relu", "silu", "swiglu", "geglu", "geglu_tanh"),
    "parallel_block": (False,),
    "shared_norm": (False,),
    "shared_layers": (False,),
    "residual_scale": (1.0,),
    "head": ("lm", "mlm"),
    "head_transform_bias": (True,),
    "logit_scale": (1.0,),
    "logit_softcap": (None,),
    "extra_tensors": ((),),
    "other_maths": ((),),
}

PLAIN_ROPE_SCALINGS: tuple[str, ...] = ("default", "linear", "llama3")

SPECIAL: tuple[str, ...] = ("factorised_embedding", "rope_scaling", "sliding_window", "post_norm_decoder")
"""Features that are not one field with another value."""

ROPE_ONLY: tuple[str, ...] = ("rope_theta_window", "rope_fraction", "rope_interleaved", "rope_skip_layers")
"""Fields without effect where position is not rope."""

FEATURES: tuple[str, ...] = (*PLAIN, *SPECIAL)


def needed_features(model: ModelSpec, seq_len: int) -> dict[str, str]:
    """Each feature that the model needs at this length, with the setting that needs it."""
    needs: dict[str, str] = {}
    for name, plain in PLAIN.items():
        value = getattr(model, name)
        idle = (name in ROPE_ONLY and model.position != "rope") or (
            name == "head_transform_bias" and model.head != "mlm"
        )
        if value not in plain and not idle:
            needs[name] = f"{name}={_shown(value)}"
    if model.embedding_size != model.hidden_size:
        needs["factorised_embedding"] = f"embedding_size={model.embedding_size} below hidden_size"
    if model.position == "rope" and model.rope_scaling:
        kind = str(model.rope_scaling.get("rope_type", model.rope_scaling.get("type", "default")))
        if kind not in PLAIN_ROPE_SCALINGS:
            needs["rope_scaling"] = f"rope_scaling={kind}"
    if model.sliding_window is not None and model.sliding_window < seq_len:
        needs["sliding_window"] = f"sliding_window={model.sliding_window} below seq_len={seq_len}"
    if model.architecture == "decoder" and model.norm_position == "post":
        needs["post_norm_decoder"] = "norm_position=post in a decoder"
    return needs


def missing_features(model: ModelSpec, seq_len: int, supported: tuple[str, ...]) -> list[str]:
    """The settings of `model` that a trainer with the `supported` features cannot run."""
    return [setting for name, setting in needed_features(model, seq_len).items() if name not in supported]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        names = [str(getattr(item, "name", item)) for item in value]
        return ",".join(names[:3]) + ",..." * (len(names) > 3)
    return f"{value:g}" if isinstance(value, float) else str(value)
