"""Heads in groups: the ring runs once for each group, so its buffers are those of one group.

Attention of different heads is independent. Going round the ring with a quarter of the heads at a time moves
the same bytes in messages of a quarter of the size, and divides by four every buffer that exists only while
the ring turns: the received K/V, the travelling dK/dV, a block's results, float32 copies.
Shapes: H query heads and K kv heads on this rank; a group holds whole kv heads with their query heads.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

MAX_GROUPS = 6
"""At 6 the transient is 11/6 of one q tensor, beside 8 that must be (float32, K = H)."""

MIN_MESSAGE_BYTES = 1 << 20
"""A hop is not made smaller: 1 MiB takes 20 us at 50 GB/s, about a message's latency between nodes."""


def number_of_groups(kv_heads: int, kv_bytes: int) -> int:
    """The largest divisor of `kv_heads` up to MAX_GROUPS that keeps a K/V message at MIN_MESSAGE_BYTES.

    `kv_bytes`: K and V of all heads of one rank together.
    """
    fitting = [
        groups
        for groups in range(1, MAX_GROUPS + 1)
        if kv_heads % groups == 0 and kv_bytes // groups >= MIN_MESSAGE_BYTES
    ]
    return max(fitting, default=1)


def head_slices(query_heads: int, kv_heads: int, groups: int) -> Iterator[tuple[slice, slice]]:
    """For each group its query heads and its kv heads; query head h belongs to kv head h // (H / K)."""
    assert query_heads % kv_heads == 0, f"{query_heads} query heads are no multiple of {kv_heads} kv heads"
    assert kv_heads % groups == 0, f"{groups} groups do not divide {kv_heads} kv heads"
    q_size, kv_size = query_heads // groups, kv_heads // groups
    for group in range(groups):
        yield slice(group * q_size, (group + 1) * q_size), slice(group * kv_size, (group + 1) * kv_size)


def heads_first(x_BSHD: Tensor, heads: slice) -> Tensor:
    """A view of some heads as the kernels take them. [B, S, H, D] -> [B, h, S, D]"""
    return x_BSHD[:, :, heads].transpose(1, 2)
