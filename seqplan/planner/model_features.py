"""What a model needs of a trainer beyond the plain transformer.

The plain transformer, which every trainer is taken to run: a decoder with norms before each block or an
encoder with norms before or after, LayerNorm or RMSNorm, learned positions or full RoPE, any activation of
ModelSpec, biases, tied embeddings. Everything else is a named feature; a trainer lists those it has in its
capabilities (`model_features`), and a model that needs another one is planned but not proposed for a run.
"""

from __future__ import annotations

from collections.abc import Callable

from seqplan.planner.model_spec import ModelSpec

Need = Callable[[ModelSpec, int], str | None]
"""(model, seq_len) -> the setting that needs the feature, or None where it has no effect."""


def _parallel_block(model: ModelSpec, seq_len: int) -> str | None:
    return "parallel_block=true" if model.parallel_block else None


def _alibi(model: ModelSpec, seq_len: int) -> str | None:
    return "position=alibi" if model.position == "alibi" else None


def _relative(model: ModelSpec, seq_len: int) -> str | None:
    return "position=relative" if model.position == "relative" else None


def _no_positions(model: ModelSpec, seq_len: int) -> str | None:
    return "position=none" if model.position == "none" else None


def _sliding_window(model: ModelSpec, seq_len: int) -> str | None:
    window = model.sliding_window
    return f"sliding_window={window} below seq_len={seq_len}" if window and window < seq_len else None


def _partial_rope(model: ModelSpec, seq_len: int) -> str | None:
    if model.position == "rope" and model.rope_fraction < 1.0:
        return f"rope_fraction={model.rope_fraction:g}"
    return None


RUNTIME_ROPE_SCALINGS: tuple[str, ...] = ("default", "linear", "llama3")


def _rope_scaling(model: ModelSpec, seq_len: int) -> str | None:
    if model.position != "rope" or not model.rope_scaling:
        return None
    kind = str(model.rope_scaling.get("rope_type", model.rope_scaling.get("type", "default")))
    return None if kind in RUNTIME_ROPE_SCALINGS else f"rope_scaling={kind}"


def _qk_norm_full(model: ModelSpec, seq_len: int) -> str | None:
    return "qk_norm=full" if model.qk_norm == "full" else None


def _norm_place(model: ModelSpec, seq_len: int) -> str | None:
    plain = ("pre", "post") if model.architecture == "encoder" else ("pre",)
    return (
        None
        if model.norm_position in plain
        else f"norm_position={model.norm_position} in a {model.architecture}"
    )


def _weightless_norm(model: ModelSpec, seq_len: int) -> str | None:
    return "norm=layernorm_without_weights" if model.norm == "layernorm_without_weights" else None


def _shared_layers(model: ModelSpec, seq_len: int) -> str | None:
    return "shared_layers=true" if model.shared_layers else None


def _factorised(model: ModelSpec, seq_len: int) -> str | None:
    if model.embedding_size == model.hidden_size:
        return None
    return f"embedding_size={model.embedding_size} with hidden_size={model.hidden_size}"


def _softcap(model: ModelSpec, seq_len: int) -> str | None:
    for name in ("attention_softcap", "attn_logit_softcapping", "logit_softcap", "final_logit_softcapping"):
        if getattr(model, name, None):
            return f"{name}={getattr(model, name):g}"
    return None


def _other_head(model: ModelSpec, seq_len: int) -> str | None:
    plain = "lm" if model.architecture == "decoder" else "mlm"
    return None if model.head == plain else f"head={model.head} in a {model.architecture}"


FEATURES: dict[str, Need] = {
    "parallel_block": _parallel_block,
    "alibi": _alibi,
    "relative_positions": _relative,
    "no_positions": _no_positions,
    "sliding_window": _sliding_window,
    "partial_rope": _partial_rope,
    "other_rope_scaling": _rope_scaling,
    "qk_norm_full": _qk_norm_full,
    "other_norm_position": _norm_place,
    "weightless_norm": _weightless_norm,
    "shared_layers": _shared_layers,
    "factorised_embedding": _factorised,
    "softcap": _softcap,
    "other_head": _other_head,
}


def missing_features(model: ModelSpec, seq_len: int, supported: tuple[str, ...]) -> list[str]:
    """The settings of `model` that a trainer with the `supported` features cannot run."""
    needs = {name: need(model, seq_len) for name, need in FEATURES.items()}
    return [setting for name, setting in needs.items() if setting and name not in supported]
