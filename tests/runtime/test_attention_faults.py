"""Ring attention's pieces in one process, and what must be refused.

Numbers refer to what went wrong elsewhere with ring attention (merge overflow, lse dtype, and so on).
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from torch.utils.flop_counter import FlopCounterMode

from seqplan.planner.errors import SeqplanError
from seqplan.runtime.attention.block_attention import block_backward, block_forward
from seqplan.runtime.attention.block_masks import Block, require_kernel
from seqplan.runtime.attention.head_groups import head_slices, number_of_groups
from seqplan.runtime.attention.ring_passes import Pass, backward, forward, merge_
from seqplan.runtime.ring import Ring
from seqplan.runtime.ring_attention import ring_attention
from seqplan.runtime.rsa import AttentionDropout, rsa
from tests.runtime.attention_cases import Case


@pytest.mark.parametrize("gap", [-1e4, -50.0, 0.0, 50.0, 1e4])
def test_merge_of_results_whose_weights_differ_by_any_factor(gap: float) -> None:
    """1: exp(block_lse - lse) overflows. Truth: the heavier side, or the mean at equal weight."""
    first, second = torch.full((1, 1, 1, 2), 2.0), torch.full((1, 1, 1, 2), 8.0)
    lse = torch.zeros(1, 1, 1)
    merge_(first, lse, second, torch.full((1, 1, 1), gap))
    weight = 1 / (1 + math.exp(-gap)) if abs(gap) < 100 else float(gap > 0)
    torch.testing.assert_close(first, torch.full_like(first, 2.0 + 6.0 * weight))
    torch.testing.assert_close(lse, torch.full_like(lse, max(gap, 0) + math.log1p(math.exp(-abs(gap)))))


@pytest.mark.parametrize(
    ("lse", "lse_b", "out", "merged"),
    [(-math.inf, 0.5, 8.0, 0.5), (0.5, -math.inf, 2.0, 0.5), (-math.inf, -math.inf, 2.0, -math.inf)],
)
def test_merge_with_rows_that_saw_no_key(lse: float, lse_b: float, out: float, merged: float) -> None:
    running, running_lse = torch.full((1, 1, 1, 2), 2.0), torch.full((1, 1, 1), lse)
    merge_(running, running_lse, torch.full((1, 1, 1, 2), 8.0), torch.full((1, 1, 1), lse_b))
    assert running.flatten().tolist() == [out, out]
    assert running_lse.item() == merged


def test_huge_scores_neither_overflow_nor_lose_a_block() -> None:
    """1 again, through the whole operator: one key outweighs all others by e ** 10000."""
    q = torch.zeros(1, 8, 1, 4)
    q[..., 0] = 100.0
    k, v = torch.zeros(1, 8, 1, 4), torch.arange(8.0).view(1, 8, 1, 1).expand(1, 8, 1, 4).contiguous()
    k[0, 5, 0, 0] = 100.0
    out = ring_attention(q, k, v, group=None, causal=False, scale=1.0)
    assert torch.equal(out, torch.full_like(out, 5.0))


@pytest.mark.parametrize("kernel", ["flash", "math"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_lse_is_float32_or_wider_and_results_keep_their_dtype(dtype: torch.dtype, kernel: str) -> None:
    """11: a log-sum-exp in the dtype of q. 10: gradients in float32 for narrow inputs."""
    q, k, v, cotangent = Case(True, dtype=dtype).inputs()
    call = Pass(Ring(None), True, 0.4, kernel, 1)
    out, lse = forward(q, k, v, None, call)
    assert out.dtype == dtype
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert {x.dtype for x in backward(cotangent, q, k, v, out, lse, None, call)} == {dtype}


@pytest.mark.parametrize("kernel", ["flash", "math"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_row_without_keys_has_lse_minus_infinity_and_no_gradient(causal: bool, kernel: str) -> None:
    """16: torch's CPU kernel says lse 0 there, which would weigh as one key; and NaN gradients from -inf."""
    q, k, v, cotangent = (x.transpose(1, 2) for x in Case(causal, kv_heads=6).inputs())
    valid = torch.ones(2, 24, dtype=torch.bool)
    valid[0, :5] = False
    valid[1] = False
    block = Block(kernel, 0.4, causal, valid)
    out, lse = block_forward(q, k, v, block)
    blind = torch.zeros(2, 1, 24, dtype=torch.bool)
    blind[0, :, :5] = causal  # the first rows see only padding
    blind[1] = True
    assert torch.equal(lse == -math.inf, blind.expand_as(lse))
    assert (out[blind.expand_as(lse)] == 0).all()
    lse = lse.masked_fill(lse == -math.inf, 0.0)
    dq, dk, dv = block_backward(cotangent, q, k, v, out, lse, block)
    assert all(torch.isfinite(x).all() for x in (dq, dk, dv))
    assert (dq[blind.expand_as(lse)] == 0).all()
    assert (dk[1] == 0).all()
    assert (dv[1] == 0).all()


@pytest.mark.parametrize("kernel", ["flash", "math"])
def test_d_comes_from_the_final_output(kernel: str) -> None:
    """9: D = rowsum(dO * O) is right block by block with the whole row's O, and wrong with a block's own."""
    q, k, v, cotangent = (x.transpose(1, 2) for x in Case(False, kv_heads=6).inputs())
    block = Block(kernel, 0.4)
    out, lse = block_forward(q, k, v, block)
    whole = block_backward(cotangent, q, k, v, out, lse, block)
    halves = [
        block_backward(cotangent, q, k[:, :, part], v[:, :, part], out, lse, block)
        for part in (slice(0, 12), slice(12, 24))
    ]
    torch.testing.assert_close(halves[0][0] + halves[1][0], whole[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(torch.cat([half[1] for half in halves], 2), whole[1], rtol=1e-10, atol=1e-12)
    own_out, _ = block_forward(q, k[:, :, :12], v[:, :, :12], block)
    wrong = block_backward(cotangent, q, k[:, :, :12], v[:, :, :12], own_out, lse, block)
    assert (wrong[1] - halves[0][1]).norm() > 0.01 * halves[0][1].norm()


def _tokens(seq_len: int = 6) -> list[Tensor]:
    q, k, v, _ = Case(True, kv_heads=1, heads=2, batch=1, seq_len=seq_len, head_dim=3).inputs()
    return [x.requires_grad_() for x in (q, k, v)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", ["flash", "math"])
def test_gradcheck_of_ring_attention(kernel: str, causal: bool) -> None:
    """8: an incorrect number of gradients."""
    assert torch.autograd.gradcheck(
        lambda q, k, v: ring_attention(q, k, v, group=None, causal=causal, kernel=kernel), _tokens()
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.4])
def test_gradcheck_of_rsa(p: float, causal: bool) -> None:
    drop = AttentionDropout(seed=7, p=p, batch_rows=torch.tensor([3]), head_offset=0)
    assert torch.autograd.gradcheck(
        lambda q, k, v: rsa(q, k, v, group=None, causal=causal, dropout=drop), _tokens()
    )


def test_an_expanded_gradient_is_taken_for_what_it_is() -> None:
    """out.sum().backward() hands over one number with strides 0."""
    for attend in (ring_attention, rsa):
        leaves = _tokens()
        expected = torch.autograd.grad(
            attend(*leaves, group=None, causal=True),
            leaves,
            torch.ones_like(leaves[0]),
        )
        actual = torch.autograd.grad(attend(*leaves, group=None, causal=True).sum(), leaves)
        for a, b in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, b)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"dropout_p": 0.1}, r"attention=ring does not support attention dropout \(0.1\).*Set attention to rsa"),
    ({"mask": torch.zeros(1)}, "does not support a mask other than causal and padding"),
    ({"sliding_window": 64}, r"does not support a sliding window \(64\)"),
    ({"dropout_p": 0.1, "sliding_window": 4}, r"attention dropout \(0.1\), a sliding window \(4\)"),
    ({"kernel": "efficient"}, "kernel=efficient needs a CUDA device, not cpu Set flash or math"),
    ({"kernel": "flashy"}, "kernel='flashy' is not known Set one of flash, efficient, math"),
]


@pytest.mark.parametrize(("options", "text"), REFUSED)
def test_what_ring_attention_cannot_do_is_refused(options: dict[str, Any], text: str) -> None:
    """21: a sliding window that was dropped in silence."""
    with pytest.raises(SeqplanError, match=text):
        ring_attention(*_tokens(), group=None, causal=True, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sliding_window": 64}, r"attention=rsa takes no sliding window \(64\) by itself Give it as a mask"),
        ({"mask": torch.ones(1, 1, 6, 6, dtype=torch.bool)}, "it must be floating-point"),
        ({"mask": torch.ones(1, 1, 6, 6, requires_grad=True)}, "without gradient"),
        (
            {"dropout": AttentionDropout(1, 1.0, torch.zeros(1, dtype=torch.int64), 0)},
            r"attention dropout 1.0",
        ),
    ],
)
def test_what_rsa_cannot_do_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(SeqplanError, match=text):
        rsa(*_tokens(), group=None, causal=True, **options)


def test_flops_are_counted() -> None:
    """Two matmuls of B H S S D forward, half of it when causal; 2.5 and 2 times that backward."""
    q, k, v = _tokens()
    full = 4 * 1 * 2 * 6 * 6 * 3
    table = [
        (ring_attention, False, full, 2.5),
        (ring_attention, True, full // 2, 2.5),
        (rsa, False, full, 2),
        (rsa, True, full, 2),  # alone its scores are one square, which is computed whole
    ]
    for attend, causal, expected, factor in table:
        with FlopCounterMode(display=False) as counter:
            out = attend(q, k, v, group=None, causal=causal)  # type: ignore[operator]
        assert counter.get_total_flops() == expected
        with FlopCounterMode(display=False) as counter:
            out.sum().backward()
        assert counter.get_total_flops() == factor * expected


@pytest.mark.parametrize("name", ["ring_attention", "rsa"])
def test_fake_tensors_have_the_shapes_of_real_ones(name: str) -> None:
    attend = {"ring_attention": ring_attention, "rsa": rsa}[name]
    real = attend(*_tokens(), group=None, causal=True)  # type: ignore[operator]
    with FakeTensorMode() as mode:
        leaves = [mode.from_tensor(x.detach()).requires_grad_() for x in _tokens()]
        out = attend(*leaves, group=None, causal=True)  # type: ignore[operator]
        gradients = torch.autograd.grad(out.sum(), leaves)
    assert (out.shape, out.dtype, out.stride()) == (real.shape, real.dtype, real.stride())
    assert [x.shape for x in gradients] == [x.shape for x in leaves]


@pytest.mark.parametrize("name", ["ring_attention", "rsa"])
def test_operators_obey_torchs_own_checks(name: str) -> None:
    """Schema, fake registration and autograd registration, by torch.library.opcheck."""
    q, k, v = _tokens()
    tail: tuple[Any, ...] = (None, "", True, 0.5, "flash", 1)
    if name == "rsa":
        tail = (None, None, None, "", True, 0.5, 0.0, 0, 0, 1)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    answer = torch.library.opcheck(getattr(torch.ops.seqplan, name), (q, k, v, *tail), test_utils=checks)
    assert set(answer.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", ["ring_attention", "rsa"])
def test_selective_checkpoint_can_keep_the_operator(name: str) -> None:
    attend = {"ring_attention": ring_attention, "rsa": rsa}[name]
    operator = getattr(torch.ops.seqplan, name).default
    calls = []

    def policy(_context: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        calls.append(op)
        return CheckpointPolicy.MUST_SAVE if op == operator else CheckpointPolicy.PREFER_RECOMPUTE

    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = attend(q.sin(), k, v, group=None, causal=True)  # type: ignore[operator]
        return out.cos()

    expected = torch.autograd.grad(layer(*(leaves := _tokens())).sum(), leaves)
    leaves = _tokens()
    out = checkpoint(
        layer,
        *leaves,
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(policy),
    )
    with FlopCounterMode(display=False) as counter:
        actual = torch.autograd.grad(out.sum(), leaves)
    assert operator in calls
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b)
    # Only the backward operator computed: the forward one was not run again.
    counted = {str(op) for op in counter.get_flop_counts()["Global"]}
    assert counted == {f"seqplan.{name}_backward"}


@pytest.mark.parametrize(
    ("kv_heads", "kv_bytes", "expected"),
    [
        (12, 12 << 20, 6),  # twelve messages of 1 MiB would do; six is the most
        (12, 3 << 20, 3),
        (12, 1 << 20, 1),
        (8, 64 << 20, 4),
        (5, 64 << 20, 5),
        (7, 64 << 20, 1),
        (1, 64 << 20, 1),
    ],
)
def test_number_of_head_groups(kv_heads: int, kv_bytes: int, expected: int) -> None:
    assert number_of_groups(kv_heads, kv_bytes) == expected


def test_head_groups_hold_whole_kv_heads() -> None:
    assert list(head_slices(12, 4, 2)) == [(slice(0, 6), slice(0, 2)), (slice(6, 12), slice(2, 4))]


@pytest.mark.parametrize(
    ("kernel", "dtype", "head_dim", "padded", "text"),
    [
        ("flash", torch.float32, 64, False, r"kernel=flash has no torch.float32 on CUDA"),
        ("flash", torch.bfloat16, 64, True, "kernel=flash takes no padding mask on CUDA"),
        ("flash", torch.bfloat16, 20, False, "multiple of 8 and at most 256, not 20"),
        ("efficient", torch.bfloat16, 20, False, "needs rows of 16 bytes"),
    ],
)
def test_what_a_kernel_cannot_do_is_refused(
    kernel: str, dtype: torch.dtype, head_dim: int, padded: bool, text: str
) -> None:
    with pytest.raises(SeqplanError, match=text):
        require_kernel(kernel, torch.device("cuda"), dtype, head_dim, padded)
