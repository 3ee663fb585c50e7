"""Attention of one block of queries with one block of keys, with its log-sum-exp: the kernels.

`flash` and `efficient` are torch's own fused operators, called below the autograd level because blockwise
attention needs what F.scaled_dot_product_attention hides: the log-sum-exp in forward, and in backward a
log-sum-exp and an output that belong to the whole row, not to the block. `math` is plain matmuls, on any
device and dtype; its scores are materialised for one block at a time.
What every kernel returns here: a row that sees no key of the block has output 0 and log-sum-exp -inf.
Shapes: B micro-batch, S queries, T keys, H query heads, K kv heads (H is a multiple of K; query head h reads
kv head h // (H / K), as F.scaled_dot_product_attention with enable_gqa does), D head size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seqplan.runtime.attention.block_masks import Block, accumulation_dtype, finite_lse
from seqplan.runtime.attention.cuda_attention import (
    cuda_flash_backward,
    efficient_backward,
    efficient_forward,
)
from seqplan.runtime.simulation.kernel_device import kernel_device

aten = torch.ops.aten


def block_forward(q_BHSD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    """-> out [B, H, S, D] in the dtype of q, lse [B, H, S] in the accumulation dtype."""
    if block.kernel == "math":
        out, lse = _math_forward(q_BHSD, k_BKTD, v_BKTD, block)
    elif block.kernel == "efficient":
        out, lse = efficient_forward(q_BHSD, k_BKTD, v_BKTD, block)
    elif kernel_device(q_BHSD.device) == "cuda":
        out, lse = aten._scaled_dot_product_flash_attention(
            q_BHSD, k_BKTD, v_BKTD, 0.0, block.causal, False, scale=block.scale
        )[:2]
    else:
        bias = block.key_bias(q_BHSD)
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            q_BHSD, k_BKTD, v_BKTD, 0.0, block.causal, attn_mask=bias, scale=block.scale
        )
    sees = block.row_sees_a_key(q_BHSD.shape[2])
    if sees is not None:
        lse = lse.masked_fill(~sees, -math.inf)
        if block.kernel == "efficient":  # what it leaves in such a row is not specified
            out = out.masked_fill(~sees[..., None], 0.0)
    return out, lse


def block_backward(
    dout_BHSD: Tensor,
    q_BHSD: Tensor,
    k_BKTD: Tensor,
    v_BKTD: Tensor,
    out_BHSD: Tensor,
    lse_BHS: Tensor,
    block: Block,
) -> tuple[Tensor, Tensor, Tensor]:
    """-> dq, dk, dv of this block, given `out` and `lse` of the whole rows.

    With P = exp(scores - lse) of the whole row, dS = P * (dP - D) and D = rowsum(dO * O) hold block by block,
    but only with the final O and lse. `lse` must be finite: 0 stands for a row that sees no key anywhere.
    """
    if block.kernel == "math":
        return _math_backward(dout_BHSD, q_BHSD, k_BKTD, v_BKTD, out_BHSD, lse_BHS, block)
    if block.kernel == "efficient":
        return efficient_backward(dout_BHSD, q_BHSD, k_BKTD, v_BKTD, out_BHSD, lse_BHS, block)
    if kernel_device(q_BHSD.device) == "cuda":
        return cuda_flash_backward(dout_BHSD, q_BHSD, k_BKTD, v_BKTD, out_BHSD, lse_BHS, block)
    dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        dout_BHSD,
        q_BHSD,
        k_BKTD,
        v_BKTD,
        out_BHSD,
        lse_BHS,
        0.0,
        block.causal,
        attn_mask=block.key_bias(q_BHSD),
        scale=block.scale,
    )
    return dq, dk, dv


def _grouped(x_BHSD: Tensor, kv_heads: int, dtype: torch.dtype) -> Tensor:
    """Query heads of one kv head side by side, so that kv is never copied. -> [B, K, (H/K) S, D]"""
    B, H, S, D = x_BHSD.shape
    return x_BHSD.to(dtype).reshape(B, kv_heads, H // kv_heads * S, D)


def _math_scores(q_BKRD: Tensor, k_BKTD: Tensor, block: Block, num_queries: int) -> Tensor:
    """Scaled and masked scores. R = (H/K) S rows. -> [B, K, R, T]"""
    scores = torch.matmul(q_BKRD * block.scale, k_BKTD.transpose(2, 3))
    B, K, R, T = scores.shape
    if block.causal:
        hidden = torch.ones(num_queries, T, dtype=torch.bool, device=scores.device).triu_(1)
        scores.view(B, K, R // num_queries, num_queries, T).masked_fill_(hidden, -math.inf)
    if block.valid_BT is not None:
        scores.masked_fill_(~block.valid_BT[:, None, None, :], -math.inf)
    return scores


def _math_forward(q_BHSD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    wide = accumulation_dtype(q_BHSD.dtype)
    K, S = k_BKTD.shape[1], q_BHSD.shape[2]
    scores = _math_scores(_grouped(q_BHSD, K, wide), k_BKTD.to(wide), block, S)
    lse = scores.logsumexp(-1)
    probabilities = scores.sub_(finite_lse(lse)[..., None]).exp_()
    out = torch.matmul(probabilities, v_BKTD.to(wide))
    return out.to(q_BHSD.dtype).view(q_BHSD.shape), lse.view(q_BHSD.shape[:3])


def _math_backward(
    dout_BHSD: Tensor,
    q_BHSD: Tensor,
    k_BKTD: Tensor,
    v_BKTD: Tensor,
    out_BHSD: Tensor,
    lse_BHS: Tensor,
    block: Block,
) -> tuple[Tensor, Tensor, Tensor]:
    wide = accumulation_dtype(q_BHSD.dtype)
    K, S = k_BKTD.shape[1], q_BHSD.shape[2]
    q, dout = _grouped(q_BHSD, K, wide), _grouped(dout_BHSD, K, wide)
    k, v = k_BKTD.to(wide), v_BKTD.to(wide)
    probabilities = _math_scores(q, k, block, S).sub_(lse_BHS.reshape(*q.shape[:3], 1)).exp_()
    dv = torch.matmul(probabilities.transpose(2, 3), dout)
    D = (dout * _grouped(out_BHSD, K, wide)).sum(-1, keepdim=True)
    dscores = torch.matmul(dout, v.transpose(2, 3)).sub_(D).mul_(probabilities)
    dq = torch.matmul(dscores, k).mul_(block.scale)
    dk = torch.matmul(dscores.transpose(2, 3), q).mul_(block.scale)
    dtype = q_BHSD.dtype
    return dq.to(dtype).view(q_BHSD.shape), dk.to(dtype), dv.to(dtype)
