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
from dataclasses import dataclass

import torch
from torch import Tensor

from seqplan.planner.errors import SeqplanError

KERNELS = ("flash", "efficient", "math")

aten = torch.ops.aten


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


def require_kernel(kernel: str, device: torch.device, dtype: torch.dtype, head_dim: int, padded: bool) -> None:
    """SeqplanError where `kernel` cannot compute on this device."""
    if kernel not in KERNELS:
        raise SeqplanError(f"kernel={kernel!r} is not known", f"Set one of {', '.join(KERNELS)}.")
    cuda = device.type == "cuda"
    if kernel == "efficient" and not cuda:
        raise SeqplanError(f"kernel=efficient needs a CUDA device, not {device.type}", "Set flash or math.")
    if kernel == "flash" and cuda and dtype not in (torch.float16, torch.bfloat16):
        raise SeqplanError(f"kernel=flash has no {dtype} on CUDA", "Set efficient or math, or precision bf16.")
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


def block_forward(q_BHSD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    """-> out [B, H, S, D] in the dtype of q, lse [B, H, S] in the accumulation dtype."""
    if block.kernel == "math":
        out, lse = _math_forward(q_BHSD, k_BKTD, v_BKTD, block)
    elif block.kernel == "efficient":
        out, lse = _efficient_forward(q_BHSD, k_BKTD, v_BKTD, block)
    elif q_BHSD.device.type == "cuda":
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
        return _efficient_backward(dout_BHSD, q_BHSD, k_BKTD, v_BKTD, out_BHSD, lse_BHS, block)
    if q_BHSD.device.type == "cuda":
        return _cuda_flash_backward(dout_BHSD, q_BHSD, k_BKTD, v_BKTD, out_BHSD, lse_BHS, block)
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


# --- math ---------------------------------------------------------------------------------------------


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
    dout_BHSD: Tensor, q_BHSD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, out_BHSD: Tensor, lse_BHS: Tensor, block: Block
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


def finite_lse(lse: Tensor) -> Tensor:
    """0 in place of -inf: exp(-inf - 0) is 0, where exp(-inf - -inf) would be NaN."""
    return lse.masked_fill(lse == -math.inf, 0.0)


# --- CUDA ---------------------------------------------------------------------------------------------
# From torch's operator signatures; the tests of these are marked `gpu`.


def _cuda_flash_backward(
    dout_BHSD: Tensor, q_BHSD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, out_BHSD: Tensor, lse_BHS: Tensor, block: Block
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


def _efficient_forward(q_BHSD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    B, H, S, D = q_BHSD.shape
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


def _efficient_backward(
    dout_BHSD: Tensor, q_BHSD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, out_BHSD: Tensor, lse_BHS: Tensor, block: Block
) -> tuple[Tensor, Tensor, Tensor]:
    B, H, S, D = q_BHSD.shape
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
