"""The passes of the paper's ring self-attention as plain functions.

Forward: keys travel once and fill this rank's rows of scores; softmax over whole rows; values travel once and
the output adds up. Backward: keys and values travel together, and the gradients of the blocks with them.
Rows are queries: position first, then the query heads that share a kv head, so that kv is never copied and
a range of positions is a range of rows. Columns are keys in global order.
Shapes: B micro-batch, S local tokens, L tokens of all ranks, H query heads, K kv heads, D head size; in one
of G groups of heads: h query heads, k kv heads, M = B k matrices of R = S H / K rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seqplan.runtime.attention.block_masks import accumulation_dtype
from seqplan.runtime.attention.head_groups import head_slices
from seqplan.runtime.attention.ring_travel import Hand, Part, gradient_buffers, gradients_home, meet_all
from seqplan.runtime.attention.rsa_scores import (
    Dropout,
    GroupDropout,
    Piece,
    add_product,
    local_chunks,
    pieces,
    product,
    row_ranges,
    row_softmax_,
    tiles,
)
from seqplan.runtime.ring import Ring


@dataclass(frozen=True)
class Pass:
    """What forward and backward of one call share."""

    ring: Ring
    causal: bool
    scale: float
    dropout: Dropout | None
    head_groups: int

    def group_dropout(self, tokens: int, heads: slice, kv_heads: int) -> GroupDropout | None:
        if self.dropout is None:
            return None
        ranges = local_chunks(tokens, self.ring.size, self.ring.rank, self.causal)
        device = self.dropout.batch_rows_B.device
        positions = torch.cat([torch.arange(start, stop, device=device) for start, stop in ranges])
        return self.dropout.of_group(positions, heads, kv_heads)

    def pieces(self, step: int, tokens: int) -> list[Piece]:
        ring = self.ring
        return pieces(tokens, ring.size, ring.rank, ring.source(step), self.causal)


def to_rows(x_BShD: Tensor, kv_heads: int) -> Tensor:
    """Queries of a group as rows. [B, S, h, D] -> [M, R, D], contiguous"""
    B, S, h, D = x_BShD.shape
    by_kv_head = x_BShD.view(B, S, kv_heads, h // kv_heads, D).transpose(1, 2)
    return by_kv_head.reshape(B * kv_heads, S * (h // kv_heads), D)


def from_rows(x_MRD: Tensor, into_BShD: Tensor, kv_heads: int) -> None:
    """The inverse of `to_rows`, written into a view of the result."""
    B, S, h, D = into_BShD.shape
    by_kv_head = into_BShD.view(B, S, kv_heads, h // kv_heads, D).transpose(1, 2)
    by_kv_head.copy_(x_MRD.view(B, kv_heads, S, h // kv_heads, D))


def fill_matrices(x_BSkD: Tensor, into_MSD: Tensor) -> None:
    """Keys or values of a group, or their gradients, into a buffer that may travel."""
    B, S, k, D = x_BSkD.shape
    into_MSD.view(B, k, S, D).copy_(x_BSkD.transpose(1, 2))


def forward(
    q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor, valid_BS: Tensor | None, mask: Tensor | None, call: Pass
) -> tuple[Tensor, Tensor]:
    """-> out [B, S, H, D]; probabilities [G, M, R, L] in the dtype of q, unseen columns unwritten."""
    B, S, H, D = q_BSHD.shape
    K, groups = k_BSKD.shape[2], call.head_groups
    k, L = K // groups, S * call.ring.size
    wide = accumulation_dtype(q_BSHD.dtype)
    out_BSHD = torch.empty(q_BSHD.shape, dtype=q_BSHD.dtype, device=q_BSHD.device)
    kept = torch.empty(groups, B * k, S * (H // K), L, dtype=q_BSHD.dtype, device=q_BSHD.device)
    keys, values = (torch.empty(B * k, S, D, dtype=q_BSHD.dtype, device=q_BSHD.device) for _ in range(2))
    keys_hand, values_hand = Hand({"k": keys}, valid_BS), Hand({"v": values}, None)
    for number, (heads, kv_heads) in enumerate(head_slices(H, K, groups)):
        scores = kept[number] if wide == kept.dtype else torch.empty_like(kept[number], dtype=wide)
        fill_matrices(k_BSKD[:, :, kv_heads], keys_hand.start()["k"])
        _fill_scores(scores, to_rows(q_BSHD[:, :, heads], k), keys_hand, call)
        if mask is not None:
            _add_mask_(scores, mask if mask.shape[1] == 1 else mask[:, heads], B, k)
        for positions, columns in row_ranges(S, call.ring.size, call.ring.rank, call.causal):
            rows = slice(positions.start * (H // K), positions.stop * (H // K))
            row_softmax_(scores[:, rows, :columns], valid_BS is not None or mask is not None)
        if scores.dtype != kept.dtype:
            kept[number].copy_(scores)
        del scores  # a wide copy is freed before the values travel
        drop = call.group_dropout(S, heads, k)
        fill_matrices(v_BSKD[:, :, kv_heads], values_hand.start()["v"])
        out = _use_values(kept[number], values_hand, drop, call)
        from_rows(out, out_BSHD[:, :, heads], k)
    return out_BSHD, kept


def _fill_scores(scores_MRL: Tensor, q_MRD: Tensor, hand: Hand, call: Pass) -> None:
    """Keys travel; scores = q k^T * scale where somebody sees, with -inf where a mask hides."""
    S, wide = hand["k"].shape[1], scores_MRL.dtype
    per_position = q_MRD.shape[1] // S
    exact = q_MRD.dtype == wide
    q = q_MRD * call.scale if exact else q_MRD  # with fewer bits the scaled q would be rounded

    def compute(step: int) -> None:
        valid = hand.valid()
        for piece in call.pieces(step, S):
            first = piece.start * per_position
            scores = scores_MRL[:, first:, piece.columns]
            keys = hand["k"][:, piece.keys].transpose(1, 2)
            if exact:
                torch.bmm(q[:, first:], keys, out=scores)
            else:
                scores.copy_(product(q[:, first:], keys, wide)).mul_(call.scale)
            if piece.diagonal:
                size = piece.keys.stop - piece.keys.start
                hidden = torch.ones(size, size, dtype=torch.bool, device=scores.device).triu_(1)
                square = scores[:, : size * per_position]
                square.masked_fill_(hidden.repeat_interleave(per_position, dim=0), -math.inf)
            if valid is not None:
                shown = valid[:, piece.keys].repeat_interleave(scores.shape[0] // valid.shape[0], dim=0)
                scores.masked_fill_(~shown[:, None, :], -math.inf)

    meet_all(call.ring, hand, compute)


def _add_mask_(scores_MRL: Tensor, mask: Tensor, batch: int, kv_heads: int) -> None:
    """Adds [B or 1, h or 1, S, L] to scores in place."""
    S, L = mask.shape[2:]
    scores = scores_MRL.view(batch, kv_heads, S, -1, L)
    by_kv = mask.unflatten(1, (kv_heads, -1)) if mask.shape[1] > 1 else mask[:, :, None]
    scores += by_kv.transpose(2, 3)


def _use_values(kept_MRL: Tensor, hand: Hand, drop: GroupDropout | None, call: Pass) -> Tensor:
    """Values travel; out = sum over blocks of P v. -> [M, R, D] in the accumulation dtype."""
    M, R, _ = kept_MRL.shape
    _, tokens, D = hand["v"].shape
    out = torch.zeros(M, R, D, dtype=accumulation_dtype(kept_MRL.dtype), device=kept_MRL.device)

    def compute(step: int) -> None:
        for piece in call.pieces(step, tokens):
            values = hand["v"][:, piece.keys]
            first = piece.start * R // tokens
            probabilities = kept_MRL[:, first:, piece.columns]
            if drop is None:
                add_product(out[:, first:], probabilities, values)
                continue
            for matrices, rows in tiles(probabilities):
                below = slice(first + rows.start, first + rows.stop)
                tile = drop.apply_(probabilities[matrices, rows].clone(), matrices, below, piece.columns)
                add_product(out[matrices, below], tile, values[matrices])

    meet_all(call.ring, hand, compute)
    return out


def backward(
    dout_BSHD: Tensor,
    q_BSHD: Tensor,
    k_BSKD: Tensor,
    v_BSKD: Tensor,
    out_BSHD: Tensor,
    kept_GMRL: Tensor,
    call: Pass,
) -> tuple[Tensor, Tensor, Tensor]:
    """-> dq [B, S, H, D], dk and dv [B, S, K, D], in the dtype of q.

    D = rowsum(dO * O) is what softmax's backward subtracts, with dropout too: either way it is
    sum_j P_j mask_j (dO . v_j) / (1 - p).
    """
    S, H, K = q_BSHD.shape[1], q_BSHD.shape[2], k_BSKD.shape[2]
    k = K // call.head_groups
    wide = accumulation_dtype(q_BSHD.dtype)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q_BSHD, k_BSKD, v_BSKD))
    kv_2MSD = torch.empty(
        2, k_BSKD.shape[0] * k, S, k_BSKD.shape[3], dtype=k_BSKD.dtype, device=k_BSKD.device
    )
    hand = Hand({"kv": kv_2MSD}, None)
    buffers = gradient_buffers(call.ring, kv_2MSD, wide)
    for number, (heads, kv_heads) in enumerate(head_slices(H, K, call.head_groups)):
        dout, q, out = (to_rows(x[:, :, heads], k) for x in (dout_BSHD, q_BSHD, out_BSHD))
        inner = (dout.to(wide) * out).sum(-1, keepdim=True)
        rows = Rows(q, dout, inner, kept_GMRL[number], call.group_dropout(S, heads, k))
        del out
        for x, into in zip((k_BSKD, v_BSKD), hand.start()["kv"], strict=True):
            fill_matrices(x[:, :, kv_heads], into)
        dq_MRD, dkv_2MSD = _backward_group(rows, hand, buffers, call)
        from_rows(dq_MRD, dq[:, :, heads], k)
        for into, part in zip((dk, dv), dkv_2MSD, strict=True):
            into[:, :, kv_heads].copy_(part.unflatten(0, (-1, k)).transpose(1, 2))
    return dq, dk, dv


@dataclass(frozen=True)
class Rows:
    """This rank's query rows of one group, with all that a backward needs of them."""

    q_MRD: Tensor
    dout_MRD: Tensor
    inner_MR1: Tensor
    kept_MRL: Tensor
    drop: GroupDropout | None


def _backward_group(
    rows: Rows, hand: Hand, buffers: tuple[Tensor, Tensor] | None, call: Pass
) -> tuple[Tensor, Tensor]:
    """One turn of the ring. -> dq [M, R, D], dk and dv [2, M, S, D], in the accumulation dtype."""
    wide, S = rows.inner_MR1.dtype, hand["kv"].shape[2]
    dq = torch.zeros_like(rows.q_MRD, dtype=wide)
    own = torch.zeros_like(hand["kv"], dtype=wide)

    def compute(step: int) -> list[Part]:
        dkv = own if step == 0 else torch.zeros_like(own)
        for piece in call.pieces(step, S):
            _add_piece(rows, hand["kv"][:, :, piece.keys], piece, S, dq, dkv[:, :, piece.keys])
        return [] if step == 0 else [((), dkv)]

    home = gradients_home(call.ring, hand, buffers, compute)
    if home is not None:
        own += home
    own[0].mul_(call.scale)
    return dq.mul_(call.scale), own


def _add_piece(rows: Rows, kv_2MTD: Tensor, piece: Piece, tokens: int, dq: Tensor, dkv: Tensor) -> None:
    """Adds one rectangle's part to dq and to the gradient of its keys and values, tile by tile.

    Plainly: dV += P^T dO; dP = dO V^T; dS = P * (dP - D); dQ += dS K; dK += dS^T Q. With dropout the P of dV
    and dP are multiplied by mask / (1 - p).
    """
    keys, values = kv_2MTD
    first = piece.start * rows.q_MRD.shape[1] // tokens
    seen = rows.kept_MRL[:, first:, piece.columns]
    for matrices, tile_rows in tiles(seen):
        below = slice(first + tile_rows.start, first + tile_rows.stop)
        probabilities = seen[matrices, tile_rows]
        dout, q = rows.dout_MRD[matrices, below], rows.q_MRD[matrices, below]
        dscores = product(dout, values[matrices].transpose(1, 2), dq.dtype)
        dropped = probabilities
        if rows.drop is not None:
            rows.drop.apply_(dscores, matrices, below, piece.columns)
            dropped = rows.drop.apply_(probabilities.clone(), matrices, below, piece.columns)
        add_product(dkv[1, matrices], dropped.transpose(1, 2), dout)
        dscores.sub_(rows.inner_MR1[matrices, below]).mul_(probabilities)
        add_product(dq[matrices, below], dscores, keys[matrices])
        add_product(dkv[0, matrices], dscores.transpose(1, 2), q)
        del dscores, dropped  # before the next tile makes its own
