"""What travels the ring: keys and values in hand, and in backward the gradients on their way home.

Used by ring attention and by rsa alike, so that both post, compute and wait in the same order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from seqplan.runtime.ring import Event, Ring, record

Part = tuple[tuple[int | slice, ...], Tensor]
"""A piece of gradient and its index in the buffer of the block in hand."""


class Hand:
    """The block in hand, by name, and the buffers into which the next one is received.

    One Hand serves every group of heads in turn: allocating anew for each would fragment the heap (with glibc
    to 90 MiB where 66 are in use, measured).
    """

    def __init__(self, buffers: dict[str, Tensor], valid_BS: Tensor | None) -> None:
        self._here = dict(buffers)
        self._own_valid = valid_BS
        if valid_BS is not None:
            self._here["valid"] = torch.empty(valid_BS.shape, dtype=torch.uint8, device=valid_BS.device)
        assert all(buffer.is_contiguous() for buffer in self._here.values())
        self._there = {name: torch.empty_like(buffer) for name, buffer in self._here.items()}

    def start(self) -> dict[str, Tensor]:
        """The buffers, for the caller to fill with this rank's own block (its padding is filled in)."""
        if self._own_valid is not None:
            self._here["valid"].copy_(self._own_valid)
        return self._here

    def __getitem__(self, name: str) -> Tensor:
        return self._here[name]

    def valid(self) -> Tensor | None:
        """[B, S] bool: keys in hand that are not padding."""
        return self._here["valid"].bool() if "valid" in self._here else None

    def transfers(self) -> dict[str, tuple[Tensor, Tensor]]:
        """What to send, and where to receive what the previous rank sends."""
        return {name: (block, self._there[name]) for name, block in self._here.items()}

    def turn(self) -> None:
        """The received block is in hand now; the buffers of the old one are free."""
        self._here, self._there = self._there, self._here


def meet_all(ring: Ring, hand: Hand, compute: Callable[[int], None]) -> None:
    """Calls `compute(step)` with each rank's block in hand, the next hop under way meanwhile."""
    for step in range(ring.size):
        hop = ring.post(hand.transfers()) if step < ring.size - 1 else None
        compute(step)
        record(Event("compute"))
        if hop is not None:
            hop.wait()
            hand.turn()


def gradient_buffers(ring: Ring, like: Tensor, wide: torch.dtype) -> tuple[Tensor, Tensor] | None:
    """The travelling and the arriving gradient of a block like this one; None in a ring of one."""
    if ring.size == 1:
        return None
    return torch.empty_like(like, dtype=wide), torch.empty_like(like, dtype=wide)


def gradients_home(
    ring: Ring, hand: Hand, buffers: tuple[Tensor, Tensor] | None, compute: Callable[[int], list[Part]]
) -> Tensor | None:
    """What the other ranks add to the gradient of this rank's block, in one of `buffers`; None alone.

    `compute(step)` returns this rank's part of the gradient of the block in hand (at step 0 nothing: its
    own block's part stays home). The gradient of the block that was in hand one step ago travels together
    with the block in hand, and this rank adds its part to what arrives. After the last step one more hop
    brings every gradient home: size - 1 hops for the blocks and size - 1 for the gradients.
    """
    if buffers is None:
        assert compute(0) == []
        return None
    travelling, arriving = buffers
    travelling.zero_()
    for step in range(ring.size):
        transfers = hand.transfers() if step < ring.size - 1 else {}
        if step >= 2:
            transfers["dkv"] = (travelling, arriving)
        hop = ring.post(transfers) if transfers else None
        parts = compute(step)
        record(Event("compute"))
        if hop is not None:
            hop.wait()
        if step < ring.size - 1:
            hand.turn()
        if step >= 2:
            travelling, arriving = arriving, travelling
        while parts:  # emptied, so that the next block finds their memory free
            index, part = parts.pop()
            travelling[index] += part
            del part
    ring.post({"dkv": (travelling, arriving)}).wait()
    return arriving
