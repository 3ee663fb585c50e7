"""An independent truth: the same transformers written plainly, one process, explicit attention, any dtype.

Nothing of the runtime is used but the rule for initial weights; weights are a dict from the names of
ModelSpec.parameter_tensors (layers as layers.N.NAME) to full tensors.
Shapes: B sequences, L tokens, H heads, D head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from seqplan.planner.model_spec import ModelSpec
from seqplan.runtime.random_field import normal, seed_of


@dataclass(frozen=True)
class Batch:
    """A global batch, whole: tokens, labels (-100: not counted), valid keys, each [B, L]."""

    tokens: Tensor
    labels: Tensor
    valid: Tensor


def make_batch(model: ModelSpec, rows: int, seq_len: int, padded: bool, seed: int = 0) -> Batch:
    """Random tokens; unequal counts of labels; `padded`: rows of unequal length, the first one whole."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, model.vocab_size, (rows, seq_len), generator=generator)
    labels = torch.randint(0, model.vocab_size, (rows, seq_len), generator=generator)
    lengths = torch.full((rows,), seq_len)
    if padded:
        lengths = torch.randint(2, seq_len + 1, (rows,), generator=generator)
        lengths[0] = seq_len
    valid = torch.arange(seq_len)[None, :] < lengths[:, None]
    dropped = torch.rand(rows, seq_len, generator=generator) < torch.linspace(0.1, 0.9, seq_len)[None, :]
    return Batch(tokens, labels.masked_fill(dropped | ~valid, -100), valid)


def full_names(model: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight that has storage of its own."""
    names: dict[str, tuple[int, ...]] = {}
    for tensor in model.parameter_tensors():
        if tensor.tied_to is None:
            copies = range(model.num_layers) if tensor.place == "layer" else [None]
            for layer in copies:
                names[tensor.name if layer is None else f"layers.{layer}.{tensor.name}"] = tensor.shape
    return names


def initial_weights(model: ModelSpec, seed: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """The documented rule: norms 1, biases 0, normal(0.02), residual projections / sqrt(2 layers)."""
    weights: dict[str, Tensor] = {}
    for name, shape in full_names(model).items():
        if "norm" in name and name.endswith(".weight"):
            value = torch.ones(shape)
        elif name.endswith(".bias"):
            value = torch.zeros(shape)
        else:
            residual = name.endswith(("attention.output.weight", "mlp.down.weight"))
            deviation = 0.02 / math.sqrt(2 * model.num_layers) if residual else 0.02
            value = normal(seed_of(seed, name), torch.arange(shape[0]), torch.arange(shape[1])) * deviation
        weights[name] = value.to(dtype).requires_grad_()
    return weights


def _norm(model: ModelSpec, weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    weight = weights[f"{name}.weight"]
    if model.norm == "rmsnorm":
        return x * (x.pow(2).mean(-1, keepdim=True) + model.norm_eps).rsqrt() * weight
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return (x - mean) * (variance + model.norm_eps).rsqrt() * weight + weights.get(f"{name}.bias", 0.0)


def _linear(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ weights[f"{name}.weight"].t() + weights.get(f"{name}.bias", 0.0)


def _activation(model: ModelSpec, x: Tensor) -> Tensor:
    name = model.activation
    if name in ("silu", "swiglu"):
        return x * torch.sigmoid(x)
    if name == "relu":
        return x.clamp(min=0)
    if name in ("gelu_tanh", "geglu_tanh"):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def _rope(model: ModelSpec, x_BLHD: Tensor) -> Tensor:
    """Complex form of the rotation: (x_i + i x_{i+D/2}) e^{i angle}."""
    half = model.head_dim // 2
    angles = torch.arange(x_BLHD.shape[1], dtype=torch.float64)[:, None] * model.rope_theta ** (
        -torch.arange(half, dtype=torch.float64) / half
    )
    turned = (
        torch.complex(x_BLHD[..., :half].double(), x_BLHD[..., half:].double())
        * torch.polar(torch.ones_like(angles), angles)[:, None, :]
    )
    return torch.cat((turned.real, turned.imag), dim=-1).to(x_BLHD.dtype)


def _attention(
    model: ModelSpec, weights: dict[str, Tensor], name: str, x: Tensor, valid_BL: Tensor
) -> Tensor:
    length = x.shape[1]
    q, k, v = (_linear(weights, f"{name}.{part}", x) for part in ("query", "key", "value"))
    q, k, v = (y.unflatten(-1, (-1, model.head_dim)) for y in (q, k, v))
    if model.qk_norm == "per_head":
        q, k = _norm(model, weights, f"{name}.query_norm", q), _norm(model, weights, f"{name}.key_norm", k)
    if model.position == "rope":
        q, k = _rope(model, q), _rope(model, k)
    copies = model.num_attention_heads // model.num_kv_heads
    k, v = k.repeat_interleave(copies, dim=2), v.repeat_interleave(copies, dim=2)
    scale = model.head_dim**-0.5 if model.attention_scale is None else model.attention_scale
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    scores = scores.masked_fill(~valid_BL[:, None, None, :], float("-inf"))
    if model.causal:
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
    out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
    return _linear(weights, f"{name}.output", out.flatten(2))


def _mlp(model: ModelSpec, weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    up = _linear(weights, f"{name}.up", x)
    if model.gated_mlp:
        up = _activation(model, _linear(weights, f"{name}.gate", x)) * up
    else:
        up = _activation(model, up)
    return _linear(weights, f"{name}.down", up)


def logits(model: ModelSpec, weights: dict[str, Tensor], tokens_BL: Tensor, valid_BL: Tensor) -> Tensor:
    """[B, L, vocabulary]."""
    x = weights["embedding.tokens.weight"][tokens_BL]
    if model.position == "learned":
        # OPT and RoBERTa: rows beyond the longest sequence stand first, and no position has them.
        first = model.position_rows - (model.max_position_embeddings or model.position_rows)
        x = x + weights["embedding.positions.weight"][first : first + tokens_BL.shape[1]]
    if model.token_types:
        x = x + weights["embedding.token_types.weight"][0]
    if model.embedding_norm:
        x = _norm(model, weights, "embedding.norm", x)
    for layer in range(model.num_layers):
        at = f"layers.{layer}"
        if model.norm_position == "pre":
            x = x + _attention(
                model, weights, f"{at}.attention", _norm(model, weights, f"{at}.attention_norm", x), valid_BL
            )
            x = x + _mlp(model, weights, f"{at}.mlp", _norm(model, weights, f"{at}.mlp_norm", x))
        else:
            attended = x + _attention(model, weights, f"{at}.attention", x, valid_BL)
            x = _norm(model, weights, f"{at}.attention_norm", attended)
            x = _norm(model, weights, f"{at}.mlp_norm", x + _mlp(model, weights, f"{at}.mlp", x))
    if model.final_norm:
        x = _norm(model, weights, "final_norm", x)
    if model.head == "mlm":
        x = _norm(model, weights, "head.norm", _activation(model, _linear(weights, "head.transform", x)))
    table = weights["embedding.tokens.weight" if model.tied_embeddings else "head.weight"]
    return x @ table.t() + weights.get("head.bias", 0.0)


def mean_loss(model: ModelSpec, weights: dict[str, Tensor], batch: Batch) -> Tensor:
    """Mean over the counted tokens of the whole batch."""
    out = logits(model, weights, batch.tokens, batch.valid)
    return F.cross_entropy(out.flatten(0, 1), batch.labels.flatten(), ignore_index=-100)


def gradients(
    model: ModelSpec, batch: Batch, seed: int, dtype: torch.dtype
) -> tuple[float, dict[str, Tensor]]:
    """Loss and every weight's gradient at the initial weights."""
    weights = initial_weights(model, seed, dtype)
    loss = mean_loss(model, weights, batch)
    values = torch.autograd.grad(loss, list(weights.values()))
    return float(loss.detach()), dict(zip(weights, values, strict=True))
