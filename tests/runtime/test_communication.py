"""What each rank sends, counted where it is posted, and in which order it posts, computes and waits.

Expected counts (arXiv 2105.13120, section 3.2, for K = H): forward 2 (N-1) B S K D elements; backward at most
6 (N-1) B S K D. Ours sends 4 (N-1) B S K D backward: keys and values once, their gradients once, since a
block's own part stays home; with bfloat16 blocks and float32 gradients 2 * 2 + 2 * 4 bytes an element, which
is the published 6 * 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from seqplan.runtime.attention import ring_passes, rsa_passes
from seqplan.runtime.ring import Event, Ring, observe, sent_totals
from seqplan.runtime.ring_attention import ring_attention
from seqplan.runtime.rsa import rsa
from tests.ranks import RanksFailedError, run_ranks
from tests.runtime.attention_cases import world

pytestmark = pytest.mark.ranks

B, S, H, K, D = 2, 8, 6, 3, 5

Totals = dict[str, tuple[int, int]]


ATTENDS: dict[str, Callable[..., Tensor]] = {"ring": ring_attention, "rsa": rsa}


def _events(
    rank: int, world_size: int, name: str, causal: bool, padded: bool, dtype: torch.dtype, groups: int
) -> tuple[list[Event], list[Event]]:
    q = torch.randn(B, S, H, D, dtype=dtype, requires_grad=True)
    k, v = (torch.randn(B, S, K, D, dtype=dtype, requires_grad=True) for _ in range(2))
    valid = torch.ones(B, S, dtype=torch.bool) if padded else None
    with observe() as forward:
        out = ATTENDS[name](q, k, v, group=world(), causal=causal, valid_BS=valid, head_groups=groups)
    with observe() as backward:
        out.backward(torch.randn_like(out))
    return forward, backward


@pytest.mark.parametrize("name", ["ring", "rsa"])
@pytest.mark.parametrize(
    ("sp", "causal", "padded", "dtype", "groups"),
    [
        (1, True, True, torch.float32, 1),
        (2, False, False, torch.float32, 1),
        (2, True, True, torch.bfloat16, 3),
        (3, True, False, torch.float64, 3),
        (4, False, True, torch.bfloat16, 1),
        (4, True, False, torch.bfloat16, 1),
    ],
)
def test_every_rank_sends_what_the_formula_says(
    name: str, sp: int, causal: bool, padded: bool, dtype: torch.dtype, groups: int
) -> None:
    block = (sp - 1) * B * S * K * D
    narrow, wide = dtype.itemsize, max(dtype.itemsize, 4)
    for forward, backward in run_ranks(sp, _events, name, causal, padded, dtype, groups):
        sent = sent_totals(forward)
        padding = sent.pop("valid", (0, 0))
        assert padding == ((sp - 1) * B * S * groups * padded, (sp - 1) * B * S * groups * padded)
        expected: Totals = (
            {"kv": (2 * block, 2 * block * narrow)}
            if name == "ring"
            else {"k": (block, block * narrow), "v": (block, block * narrow)}
        )
        assert sent == (expected if sp > 1 else {})
        back = sent_totals(backward)
        back_padding = back.pop("valid", (0, 0))
        assert back_padding == (padding if name == "ring" else (0, 0))  # rsa kept its probabilities
        expected = {"kv": (2 * block, 2 * block * narrow), "dkv": (2 * block, 2 * block * wide)}
        assert back == (expected if sp > 1 else {})
        # Not above the published 2 + 6 blocks, in elements and in bytes of the model's dtype.
        elements = sum(count for count, _ in (*sent.values(), *back.values()))
        in_bytes = sum(size for _, size in (*sent.values(), *back.values()))
        assert elements <= 8 * block
        assert in_bytes <= 8 * block * narrow


@pytest.mark.parametrize("name", ["ring", "rsa"])
@pytest.mark.parametrize("sp", [2, 3, 4])
def test_the_next_hop_is_under_way_while_a_block_is_computed(name: str, sp: int) -> None:
    """Fault 8 of the paper's code: every hop blocks. A block is computed between a post and its wait."""
    turn = ["post", "compute", "wait"] * (sp - 1) + ["compute"]
    # Backward: the last block but one travels with nothing else; the last hop only brings gradients home.
    back = ["post", "compute", "wait"] * (sp if sp > 2 else sp - 1) + (["compute"] if sp == 2 else [])
    for forward, backward in run_ranks(sp, _events, name, True, False, torch.float32, 1):
        assert [event.kind for event in forward] == turn * (1 if name == "ring" else 2)
        assert [event.kind for event in backward] == [*back, "post", "wait"]
        assert [list(event.sent) for event in backward if event.kind == "post"] == [
            *(["kv"] for _ in range(min(2, sp - 1))),
            *(["kv", "dkv"] for _ in range(sp - 3)),
            *(["dkv"] for _ in range(2 if sp > 2 else 1)),
        ]


class Recorder(TorchDispatchMode):
    """The shapes of all tensors that operators return."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for item in result if isinstance(result, tuple | list) else (result,):
            if isinstance(item, Tensor):
                self.shapes.append(tuple(item.shape))
        return result


def _largest(rank: int, world_size: int, name: str) -> tuple[int, list[int]]:
    """The longest dim of any tensor that forward and backward make, and the sizes of the largest ones."""
    q = torch.randn(1, 16, 2, 4, requires_grad=True)
    k, v = (torch.randn(1, 16, 2, 4, requires_grad=True) for _ in range(2))
    recorder = Recorder()
    with recorder, torch.no_grad():
        ring = Ring(world())
        if name == "ring":
            call = ring_passes.Pass(ring, True, 0.5, "flash", 1)
            out, lse = ring_passes.forward(q, k, v, None, call)
            ring_passes.backward(torch.ones_like(out), q, k, v, out, lse, None, call)
        else:
            rows = rsa_passes.Pass(ring, True, 0.5, None, 1)
            out, kept = rsa_passes.forward(q, k, v, None, None, rows)
            rsa_passes.backward(torch.ones_like(out), q, k, v, out, kept, rows)
    length = 16 * world_size
    shapes = recorder.shapes
    return max(max(shape, default=0) for shape in shapes), [shape.count(length) for shape in shapes]


@pytest.mark.parametrize("name", ["ring", "rsa"])
def test_nothing_of_full_length_exists_but_rows_of_scores(name: str) -> None:
    """Fault 9: the whole batch, the full mask, full-length gradients on each rank. Here L = 48 on 3 ranks."""
    for longest, lengths in run_ranks(3, _largest, name):
        if name == "ring":
            assert longest <= 2 * 16 * 2 * 4  # the packed block, flattened
            assert max(lengths) == 0
        else:
            assert max(lengths) == 1, "a tensor with two dims of full length"


def _unequal(rank: int, world_size: int, name: str) -> None:
    tokens = 8 if rank == 0 else 12
    q, k, v = (torch.randn(1, tokens, 2, 4) for _ in range(3))
    ATTENDS[name](q, k, v, group=world(), causal=False)


@pytest.mark.parametrize("name", ["ring", "rsa"])
def test_unequal_lengths_are_refused_before_they_corrupt(name: str) -> None:
    """A shorter message fills only a prefix of the receive buffer, without an error (gloo)."""
    with pytest.raises(
        RanksFailedError, match=r"shape differs between the sp ranks: \[\(1, 8, 2, 4.*\(1, 12, 2, 4"
    ):
        run_ranks(2, _unequal, name)


def _one_rank_dies(rank: int, world_size: int) -> None:
    q, k, v = (torch.randn(1, 8, 2, 4, requires_grad=True) for _ in range(3))
    out = ring_attention(q, k, v, group=world(), causal=False)
    if rank == 1:
        raise KeyError("a fault on one rank")
    out.sum().backward()


def test_a_fault_on_one_rank_ends_all() -> None:
    with pytest.raises(RanksFailedError, match=r"(?s)rank 1: Traceback.*a fault on one rank"):
        run_ranks(3, _one_rank_dies, timeout_s=20)


def _in_subgroups(rank: int, world_size: int) -> tuple[Tensor, Tensor]:
    """Two rings of two side by side: peers are ranks of the group, not of the world."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = groups[rank % 2]
    position = rank // 2
    generator = torch.Generator().manual_seed(rank % 2)
    q, k, v = (torch.randn(1, 8, 2, 4, dtype=torch.float64, generator=generator) for _ in range(3))
    part = slice(4 * position, 4 * position + 4)
    ours = ring_attention(*(x[:, part].contiguous() for x in (q, k, v)), group=mine, causal=False)
    return ours, ring_attention(q, k, v, group=None, causal=False)[:, part]


def test_rings_of_subgroups() -> None:
    for ours, expected in run_ranks(4, _in_subgroups):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-14)
