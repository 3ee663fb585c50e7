"""One block of attention as data: which kernel computes it, how it is masked, scaled and added up.

Shapes: B micro-batch, S queries, T keys of the block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seqplan.planner.errors import SeqplanError
from seqplan.runtime.simulation.kernel_device import kernel_device

KERNELS = ("flash", "efficient", "math")


@dataclass(frozen=True)
class Block:
    """How one block is masked and scaled. Causal blocks are square and aligned: query i sees keys 0 to i."""

    kernel: str
    scale: float
    causal: bool = False
    valid_BT: Tensor | None = None
    """Keys that are not padding; None: all."""

    def row_sees_a_key(self, num_queries: int) -> Tensor | None:
        """Which rows see at least one key. -> [B, 1, S or 1] bool, None where all do."""
        if self.valid_BT is None:
            return None
        if self.causal:
            return (self.valid_BT.cumsum(-1) > 0)[:, None, :num_queries]
        return self.valid_BT.any(-1)[:, None, None]

    def key_bias(self, like: Tensor) -> Tensor | None:
        """Padding as an additive mask: the CPU kernel takes no boolean one. -> [B, 1, 1, T]"""
        if self.valid_BT is None:
            return None
        bias = torch.zeros(self.valid_BT.shape, dtype=like.dtype, device=like.device)
        return bias.masked_fill_(~self.valid_BT, -math.inf)[:, None, None, :]


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def require_kernel(
    kernel: str, device: torch.device, dtype: torch.dtype, head_dim: int, padded: bool
) -> None:
    """SeqplanError where `kernel` cannot compute on this device."""
    if kernel not in KERNELS:
        raise SeqplanError(f"kernel={kernel!r} is not known", f"Set one of {', '.join(KERNELS)}.")
    cuda = kernel_device(device) == "cuda"
    if kernel == "efficient" and not cuda:
        raise SeqplanError(f"kernel=efficient needs a CUDA device, not {device.type}", "Set flash or math.")
    if kernel == "flash" and cuda and dtype not in (torch.float16, torch.bfloat16):
        raise SeqplanError(
            f"kernel=flash has no {dtype} on CUDA", "Set efficient or math, or precision bf16."
        )
    if kernel == "flash" and cuda and padded:
        raise SeqplanError("kernel=flash takes no padding mask on CUDA", "Set efficient or math.")
    if kernel == "flash" and cuda and (head_dim % 8 or head_dim > 256):
        raise SeqplanError(
            f"kernel=flash needs a head_dim that is a multiple of 8 and at most 256, not {head_dim}",
            "Set math.",
        )
    if kernel == "efficient" and head_dim * dtype.itemsize % 16:
        raise SeqplanError(
            f"kernel=efficient needs rows of 16 bytes, not head_dim={head_dim} in {dtype}", "Set math."
        )


def finite_lse(lse: Tensor) -> Tensor:
    """0 in place of -inf: exp(-inf - 0) is 0, where exp(-inf - -inf) would be NaN."""
    return lse.masked_fill(lse == -math.inf, 0.0)
