"""Which tokens of a sequence each sp rank holds: one contiguous piece, or a zigzag pair when causal.

Under a causal mask late tokens see more keys than early ones, so contiguous pieces would leave the last
rank with twice the mean work. The sequence is cut into 2 * sp chunks and rank r takes chunks r and
2 * sp - 1 - r: every rank then has the same work in every hop of the ring (zhuzilin/ring-flash-attention's
zigzag; torch calls it head-tail). Everything that is per token follows the same split: ids, labels (shifted
before the split), positions, padding, dropout.
Shapes: S local tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def chunks(seq_len: int, sp: int, sp_rank: int, causal: bool) -> list[tuple[int, int]]:
    """The global [start, stop) ranges that `sp_rank` holds, in its (ascending) order."""
    assert 0 <= sp_rank < sp, f"sp_rank {sp_rank} of {sp}"
    pieces = 2 * sp if causal else sp
    assert seq_len % pieces == 0, (
        f"seq_len={seq_len} is not a multiple of {'2 * sp' if causal else 'sp'}={pieces}: pad the sequence"
    )
    size = seq_len // pieces
    numbers = [sp_rank, pieces - 1 - sp_rank] if causal else [sp_rank]
    return [(number * size, (number + 1) * size) for number in numbers]


def local_positions(seq_len: int, sp: int, sp_rank: int, causal: bool) -> Tensor:
    """Global positions of the tokens of `sp_rank`, in local order. -> [S] int64"""
    return torch.cat([torch.arange(start, stop) for start, stop in chunks(seq_len, sp, sp_rank, causal)])


def split(x: Tensor, dim: int, sp: int, sp_rank: int, causal: bool) -> Tensor:
    """The tokens of `sp_rank` along `dim`, contiguous in memory."""
    ranges = chunks(x.shape[dim], sp, sp_rank, causal)
    pieces = [x.narrow(dim, start, stop - start) for start, stop in ranges]
    return torch.cat(pieces, dim) if len(pieces) > 1 else pieces[0].contiguous()


def unsplit(shards: list[Tensor], dim: int, causal: bool) -> Tensor:
    """The inverse of `split`: the shards of all sp ranks, by rank -> the whole sequence."""
    sp = len(shards)
    seq_len = sum(shard.shape[dim] for shard in shards)
    pieces: dict[int, Tensor] = {}
    for rank, shard in enumerate(shards):
        ranges = chunks(seq_len, sp, rank, causal)
        assert shard.shape[dim] == seq_len // sp, f"rank {rank} holds {shard.shape[dim]} of {seq_len} tokens"
        for (start, stop), piece in zip(ranges, shard.chunk(len(ranges), dim), strict=True):
            assert piece.shape[dim] == stop - start
            pieces[start] = piece
    return torch.cat([pieces[start] for start in sorted(pieces)], dim)
