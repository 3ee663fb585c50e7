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

    Takes over `blocks`: they are overwritten when the ring turns.
    """

    def __init__(self, blocks: dict[str, Tensor], valid_BS: Tensor | None) -> None:
        self._here = dict(blocks)
        if valid_BS is not None:
            self._here["valid"] = valid_BS.to(torch.uint8, copy=True, memory_format=torch.contiguous_format)
        assert all(block.is_contiguous() for block in self._here.values())
        self._there = {name: torch.empty_like(block) for name, block in self._here.items()}

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


def gradients_home(
    ring: Ring, hand: Hand, like: Tensor, wide: torch.dtype, compute: Callable[[int], list[Part]]
) -> Tensor | None:
    """What the other ranks add to the gradient of this rank's block, shaped as `like`; None in a ring of one.

    `compute(step)` returns this rank's part of the gradient of the block in hand (at step 0 nothing: its own
    block's part stays home). The gradient of the block that was in hand one step ago travels together with the
    block in hand, and this rank adds its part to what arrives. After the last step one more hop
    brings every gradient home: size - 1 hops for the blocks and size - 1 for the gradients.
    """
    if ring.size == 1:
        assert compute(0) == []
        return None
    travelling = torch.zeros_like(like, dtype=wide)
    arriving = torch.empty_like(travelling)
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
        for index, part in parts:
            travelling[index] += part
        del parts  # freed before the next block allocates its own
    ring.post({"dkv": (travelling, arriving)}).wait()
    return arriving
