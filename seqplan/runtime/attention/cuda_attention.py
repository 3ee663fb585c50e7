"""The fused kernels that exist only on CUDA devices, in the form that block_attention.py needs.

Written from the operator signatures of torch 2.13 (native_functions.yaml, its kernels' headers); their tests
are marked `gpu`.
Shapes: B micro-batch, S queries, T keys, H query heads, K kv heads, D head size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seqplan.runtime.attention.block_masks import Block, accumulation_dtype

aten = torch.ops.aten


def cuda_flash_backward(
    dout_BHSD: Tensor,
    q_BHSD: Tensor,
    k_BKTD: Tensor,
    v_BKTD: Tensor,
    out_BHSD: Tensor,
    lse_BHS: Tensor,
    block: Block,
) -> tuple[Tensor, Tensor, Tensor]:
    # Without dropout the random state is not read; without nested tensors neither are the cumulative lengths.
    no_state = torch.zeros(2, dtype=torch.uint64, device=q_BHSD.device)
    dq, dk, dv = aten._scaled_dot_product_flash_attention_backward(
        dout_BHSD,
        q_BHSD,
        k_BKTD,
        v_BKTD,
        out_BHSD,
        lse_BHS.contiguous(),
        None,
        None,
        q_BHSD.shape[2],
        k_BKTD.shape[2],
        0.0,
        block.causal,
        no_state,
        no_state,
        scale=block.scale,
    )
    return dq, dk, dv


LSE_ALIGNMENT = 32
"""The memory-efficient kernel keeps lse rows in multiples of this (kAlignLSE in torch's kernel_forward.h)."""

BIAS_ALIGNMENT = 16
"""Elements that the last dimension of its bias must be padded to (torch's pad_bias in sdp_utils)."""


def _expand_kv(x_BKTD: Tensor, query_heads: int) -> Tensor:
    """Copies kv heads for a kernel without grouped queries. [B, K, T, D] -> [B, H, T, D]"""
    return x_BKTD.repeat_interleave(query_heads // x_BKTD.shape[1], dim=1)


def _sum_kv(dx_BHTD: Tensor, kv_heads: int) -> Tensor:
    """The gradient of `_expand_kv`, summed in the accumulation dtype. -> [B, K, T, D]"""
    B, H, T, D = dx_BHTD.shape
    wide = dx_BHTD.view(B, kv_heads, H // kv_heads, T, D).sum(2, dtype=accumulation_dtype(dx_BHTD.dtype))
    return wide.to(dx_BHTD.dtype)


def _aligned_bias(q_BHSD: Tensor, block: Block) -> Tensor | None:
    """The padding bias, expanded to [B, H, S, T] without memory, its rows aligned."""
    bias = block.key_bias(q_BHSD)
    if bias is None:
        return None
    T = bias.shape[-1]
    aligned = torch.nn.functional.pad(bias, (0, -T % BIAS_ALIGNMENT))[..., :T]
    return aligned.expand(*q_BHSD.shape[:3], T)


def efficient_forward(q_BHSD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    H, S = q_BHSD.shape[1:3]
    out, lse = aten._scaled_dot_product_efficient_attention(
        q_BHSD,
        _expand_kv(k_BKTD, H),
        _expand_kv(v_BKTD, H),
        _aligned_bias(q_BHSD, block),
        True,
        0.0,
        block.causal,
        scale=block.scale,
    )[:2]
    return out, lse[..., :S]


def efficient_backward(
    dout_BHSD: Tensor,
    q_BHSD: Tensor,
    k_BKTD: Tensor,
    v_BKTD: Tensor,
    out_BHSD: Tensor,
    lse_BHS: Tensor,
    block: Block,
) -> tuple[Tensor, Tensor, Tensor]:
    H, S = q_BHSD.shape[1:3]
    K = k_BKTD.shape[1]
    # Rows beyond S do not exist: +inf makes their probabilities 0, as the kernel's own forward leaves them.
    lse = torch.nn.functional.pad(lse_BHS, (0, -S % LSE_ALIGNMENT), value=math.inf)
    no_state = torch.zeros((), dtype=torch.int64, device=q_BHSD.device)
    dq, dk, dv, _ = aten._scaled_dot_product_efficient_attention_backward(
        dout_BHSD,
        q_BHSD,
        _expand_kv(k_BKTD, H),
        _expand_kv(v_BKTD, H),
        _aligned_bias(q_BHSD, block),
        out_BHSD,
        lse,
        no_state,
        no_state,
        0.0,
        [True, True, True, False],
        block.causal,
        scale=block.scale,
    )
    return dq, _sum_kv(dk, K), _sum_kv(dv, K)
