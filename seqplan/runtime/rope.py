"""Rotary position embedding, indexed by data: positions travel with the tokens, in whatever order these have.

Shapes: B micro-batch, S tokens, H heads, D head size. Pairs are (i, i + D/2), as in Hugging Face's models.
Source: Su et al. 2104.09864; Llama 3.1's frequency scaling as in its published reference code.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seqplan.planner.model_spec import ModelSpec


def inverse_frequencies(model: ModelSpec) -> Tensor:
    """[D / 2] float64: the rotation of each pair per position, with the model's scaling applied."""
    size = model.head_dim
    frequencies = model.rope_theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    scaling = model.rope_scaling or {}
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    if kind == "default":
        return frequencies
    factor = float(scaling["factor"])
    if kind == "linear":
        return frequencies / factor
    assert kind == "llama3", kind
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    original = float(scaling["original_max_position_embeddings"])
    wavelength = 2 * math.pi / frequencies
    # 0 at long wavelengths (divide by factor), 1 at short ones (keep), linear in between.
    keep = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (keep + (1 - keep) / factor)


def rotation(model: ModelSpec, positions_S: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of each position and pair, [S, 1, D] each, computed in float64."""
    angles = (
        positions_S.to(torch.float64)[:, None] * inverse_frequencies(model).to(positions_S.device)[None, :]
    )
    angles = torch.cat((angles, angles), dim=-1)[:, None, :]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x_BSHD: Tensor, cos_S1D: Tensor, sin_S1D: Tensor) -> Tensor:
    """Apply the rotation to queries or keys. [B, S, H, D] -> the same."""
    first, second = x_BSHD.chunk(2, dim=-1)
    return x_BSHD * cos_S1D + torch.cat((-second, first), dim=-1) * sin_S1D
