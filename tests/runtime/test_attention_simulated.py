"""The Python bodies of both operators run on fake tensors in a fake process group, as simulation needs them.

What a register_fake allocates is invisible to a memory tracker (measured, torch 2.13); the bodies show their
buffers. The expected peak is counted by hand.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from seqplan.runtime.attention import ring_passes, rsa_passes
from seqplan.runtime.ring import Ring
from seqplan.runtime.ring_attention import ring_attention
from tests.ranks import run_ranks

B, S, H, K, D, SP = 1, 64, 6, 6, 64, 4


class LiveBytes(TorchDispatchMode):
    """Bytes of the storages that operators made and that are still alive, and their peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: Any = WeakIdKeyDictionary()
        self.peak_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for item in result if isinstance(result, tuple | list) else (result,):
            if isinstance(item, Tensor):
                self.storages[item.untyped_storage()] = item.untyped_storage().nbytes()
        self.peak_bytes = max(self.peak_bytes, sum(self.storages.values()))
        return result


def _simulate(rank: int, world_size: int, groups: int) -> tuple[int, int, list[tuple[int, ...]]]:
    dist.destroy_process_group()
    dist.init_process_group("fake", rank=1, world_size=SP)
    ring = Ring(dist.group.WORLD)
    with FakeTensorMode():
        q, k, v, dout = (torch.randn(B, S, heads, D) for heads in (H, K, K, H))
        call = ring_passes.Pass(ring, False, 0.25, "flash", groups)
        with LiveBytes() as live:
            out, lse = ring_passes.forward(q, k, v, None, call)
        forward_peak = live.peak_bytes
        with LiveBytes() as live:
            gradients = ring_passes.backward(dout, q, k, v, out, lse, None, call)
        shapes = [tuple(x.shape) for x in gradients]
        scores_call = rsa_passes.Pass(ring, True, 0.25, None, groups)
        out, kept = rsa_passes.forward(q, k, v, None, None, scores_call)
        rsa_passes.backward(dout, q, k, v, out, kept, scores_call)
        # The operator itself, through its fake registration.
        shapes.append(tuple(ring_attention(q, k, v, group=ring.group, causal=True).shape))
    return forward_peak, live.peak_bytes, shapes


@pytest.mark.ranks
@pytest.mark.parametrize("groups", [1, 3])
def test_bodies_run_on_fake_tensors_and_show_their_buffers(groups: int) -> None:
    ((forward_peak, backward_peak, shapes),) = run_ranks(1, _simulate, groups)
    assert shapes == [(B, S, H, D), (B, S, K, D), (B, S, K, D), (B, S, H, D)]
    tensor = B * S * H * D * 4  # K = H: q, k, v, out and their gradients are of one size
    lse = B * S * H * 4
    # The inputs that views show: q, k, v forward; q, k, v, out and its gradient backward.
    # Forward: out; of one group K/V in hand and arriving (2 + 2), running and new result (1 + 1).
    assert forward_peak == pytest.approx((3 + 1) * tensor + 6 * tensor / groups, abs=8 * lse)
    # Backward: dq, dk, dv; of one group K/V (2 + 2), travelling gradients (2 + 2), a block's results (3).
    assert backward_peak == pytest.approx((5 + 3) * tensor + 11 * tensor / groups, abs=8 * lse)
