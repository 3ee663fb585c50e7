"""The two passes of ring attention as plain functions: who meets whom in which hop, and what travels.

Forward and backward take the same path: pack a group of heads, post the hop, compute the block in hand, wait,
turn. They are called by the custom operators (ring_attention.py) and, on fake tensors, by simulation.
Shapes: B micro-batch, S local tokens, T keys of a block, H query heads, K kv heads, D head size, h and k the
heads of one group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqplan.runtime.attention.block_attention import block_backward, block_forward
from seqplan.runtime.attention.block_masks import Block, accumulation_dtype, finite_lse
from seqplan.runtime.attention.head_groups import head_slices, heads_first
from seqplan.runtime.attention.ring_travel import Hand, Part, gradient_buffers, gradients_home, meet_all
from seqplan.runtime.ring import Ring


@dataclass(frozen=True)
class Pass:
    """What forward and backward of one call share."""

    ring: Ring
    causal: bool
    scale: float
    kernel: str
    head_groups: int

    def block(self, step: int, tokens: int, valid_BS: Tensor | None) -> tuple[slice, slice, Block]:
        """Which queries meet which keys of the block in hand after `step` hops, and how it is masked.

        Zigzag: a source before this rank is seen by all queries, but only its first half (its second half is
        late tokens); a source after it is seen whole, but only by the second half of the queries.
        """
        queries = keys = slice(0, tokens)
        own = step == 0
        if self.causal and not own:
            if self.ring.source(step) < self.ring.rank:
                keys = slice(0, tokens // 2)
            else:
                queries = slice(tokens // 2, tokens)
        valid = None if valid_BS is None else valid_BS[:, keys]
        return queries, keys, Block(self.kernel, self.scale, self.causal and own, valid)


@dataclass(frozen=True)
class Rows:
    """Query rows with all that a backward needs of them; `out` and `lse` are those of whole rows."""

    dout_BhSD: Tensor
    q_BhSD: Tensor
    out_BhSD: Tensor
    lse_BhS: Tensor

    @classmethod
    def of_heads(
        cls, heads: slice, dout_BSHD: Tensor, q_BSHD: Tensor, out_BSHD: Tensor, lse_BHS: Tensor
    ) -> Rows:
        dout, q, out = (heads_first(x, heads) for x in (dout_BSHD, q_BSHD, out_BSHD))
        return cls(dout, q, out, lse_BHS[:, heads])

    def part(self, queries: slice) -> Rows:
        return Rows(*(x[:, :, queries] for x in (self.dout_BhSD, self.q_BhSD, self.out_BhSD, self.lse_BhS)))

    def gradients(self, k_BkTD: Tensor, v_BkTD: Tensor, block: Block) -> tuple[Tensor, Tensor, Tensor]:
        """-> dq, dk, dv of these rows with one block of keys."""
        lse = self.lse_BhS.contiguous()
        return block_backward(self.dout_BhSD, self.q_BhSD, k_BkTD, v_BkTD, self.out_BhSD, lse, block)


def forward(
    q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor, valid_BS: Tensor | None, call: Pass
) -> tuple[Tensor, Tensor]:
    """-> out [B, S, H, D] in the dtype of q, lse [B, H, S] in the accumulation dtype."""
    B, S, H = q_BSHD.shape[:3]
    if call.ring.size == 1:
        block = Block(call.kernel, call.scale, call.causal, valid_BS)
        out, lse = block_forward(
            q_BSHD.transpose(1, 2), k_BSKD.transpose(1, 2), v_BSKD.transpose(1, 2), block
        )
        return out.transpose(1, 2).contiguous(), lse.contiguous()
    out_BSHD = torch.empty(q_BSHD.shape, dtype=q_BSHD.dtype, device=q_BSHD.device)
    lse_BHS = torch.empty(B, H, S, dtype=accumulation_dtype(q_BSHD.dtype), device=q_BSHD.device)
    hand = Hand({"kv": _buffer(k_BSKD, call.head_groups)}, valid_BS)
    for heads, kv_heads in head_slices(H, k_BSKD.shape[2], call.head_groups):
        torch.stack((k_BSKD[:, :, kv_heads], v_BSKD[:, :, kv_heads]), out=hand.start()["kv"])
        out, lse = _forward_group(heads_first(q_BSHD, heads), hand, call)
        heads_first(out_BSHD, heads).copy_(out)
        lse_BHS[:, heads].copy_(lse)
        del out, lse  # freed before the next group makes its own
    return out_BSHD, lse_BHS


def _buffer(k_BSKD: Tensor, groups: int) -> Tensor:
    """For K and V of one group of heads. -> [2, B, S, k, D]"""
    B, S, K, D = k_BSKD.shape
    return torch.empty(2, B, S, K // groups, D, dtype=k_BSKD.dtype, device=k_BSKD.device)


def _forward_group(q_BhSD: Tensor, hand: Hand, call: Pass) -> tuple[Tensor, Tensor]:
    """One turn of the ring. -> out [B, h, S, D], lse [B, h, S], both in the accumulation dtype."""
    results: list[Tensor] = []

    def compute(step: int) -> None:
        queries, keys, block = call.block(step, q_BhSD.shape[2], hand.valid())
        out_b, lse_b = block_forward(q_BhSD[:, :, queries], *_keys_values(hand["kv"], keys), block)
        if step == 0:
            results.extend((out_b.to(lse_b.dtype), lse_b.contiguous()))
        else:
            out, lse = results
            merge_(out[:, :, queries], lse[:, :, queries], out_b, lse_b)

    meet_all(call.ring, hand, compute)
    out, lse = results
    return out, lse


def _keys_values(kv_2BSkD: Tensor, tokens: slice) -> tuple[Tensor, Tensor]:
    """[B, k, T, D] views of some tokens."""
    return kv_2BSkD[0, :, tokens].transpose(1, 2), kv_2BSkD[1, :, tokens].transpose(1, 2)


def merge_(out: Tensor, lse: Tensor, out_b: Tensor, lse_b: Tensor) -> None:
    """Merges a block's result into the running one, in place.

    Plainly, with t = exp(lse) + exp(lse_b): out = (out * exp(lse) + out_b * exp(lse_b)) / t, lse = log(t).
    As sigmoid and logaddexp no exponential of a positive number is taken, so that no gap between the two
    overflows. Two rows that saw no key (both -inf) leave 0 and -inf.
    """
    weight = torch.sigmoid(lse_b - lse).nan_to_num_(0.0)  # -inf - -inf is NaN
    out.lerp_(out_b.to(out.dtype), weight[..., None])
    torch.logaddexp(lse, lse_b, out=lse)


def backward(
    dout_BSHD: Tensor,
    q_BSHD: Tensor,
    k_BSKD: Tensor,
    v_BSKD: Tensor,
    out_BSHD: Tensor,
    lse_BHS: Tensor,
    valid_BS: Tensor | None,
    call: Pass,
) -> tuple[Tensor, Tensor, Tensor]:
    """-> dq [B, S, H, D], dk and dv [B, S, K, D], in the dtype of q."""
    if dout_BSHD.stride(-1) != 1 or 0 in dout_BSHD.stride():
        dout_BSHD = dout_BSHD.contiguous()  # the gradient of a sum is one number, expanded
    lse_BHS = finite_lse(lse_BHS)
    if call.ring.size == 1:
        rows = Rows.of_heads(slice(None), dout_BSHD, q_BSHD, out_BSHD, lse_BHS)
        block = Block(call.kernel, call.scale, call.causal, valid_BS)
        dq, dk, dv = rows.gradients(k_BSKD.transpose(1, 2), v_BSKD.transpose(1, 2), block)
        return (
            dq.transpose(1, 2).contiguous(),
            dk.transpose(1, 2).contiguous(),
            dv.transpose(1, 2).contiguous(),
        )
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q_BSHD, k_BSKD, v_BSKD))
    hand = Hand({"kv": _buffer(k_BSKD, call.head_groups)}, valid_BS)
    buffers = gradient_buffers(call.ring, hand["kv"], accumulation_dtype(q_BSHD.dtype))
    for heads, kv_heads in head_slices(q_BSHD.shape[2], k_BSKD.shape[2], call.head_groups):
        rows = Rows.of_heads(heads, dout_BSHD, q_BSHD, out_BSHD, lse_BHS)
        torch.stack((k_BSKD[:, :, kv_heads], v_BSKD[:, :, kv_heads]), out=hand.start()["kv"])
        into = heads_first(dq, heads), dk[:, :, kv_heads], dv[:, :, kv_heads]
        _backward_group(rows, hand, buffers, call, *into)
    return dq, dk, dv


def _backward_group(
    rows: Rows,
    hand: Hand,
    buffers: tuple[Tensor, Tensor] | None,
    call: Pass,
    dq_BhSD: Tensor,
    dk_BSkD: Tensor,
    dv_BSkD: Tensor,
) -> None:
    """One turn of the ring; writes the last three arguments."""
    wide = accumulation_dtype(dq_BhSD.dtype)
    dq = dq_BhSD if dq_BhSD.dtype == wide else torch.empty(dq_BhSD.shape, dtype=wide, device=dq_BhSD.device)

    def compute(step: int) -> list[Part]:
        queries, keys, block = call.block(step, dq.shape[2], hand.valid())
        dq_b, dk_b, dv_b = rows.part(queries).gradients(*_keys_values(hand["kv"], keys), block)
        dk_b, dv_b = dk_b.transpose(1, 2), dv_b.transpose(1, 2)
        if step > 0:
            dq[:, :, queries] += dq_b
            return [((0, slice(None), keys), dk_b), ((1, slice(None), keys), dv_b)]
        dq.copy_(dq_b)
        dk_BSkD.copy_(dk_b)
        dv_BSkD.copy_(dv_b)
        return []

    home = gradients_home(call.ring, hand, buffers, compute)
    if dq is not dq_BhSD:
        dq_BhSD.copy_(dq)
    if home is not None:
        dk_BSkD.copy_(home[0].add_(dk_BSkD))
        dv_BSkD.copy_(home[1].add_(dv_BSkD))
