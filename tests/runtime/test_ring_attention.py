"""Ring attention on 1 to 4 ranks equals explicit attention on one, output and every gradient.

Named after what went wrong elsewhere: 4 and 7 (wrong dK, dV behind a right forward: a random cotangent and
a relative tolerance by tensor), 6 (heads, length and head size all different), 12 (the bidirectional path),
15 and 25 (kv heads and how query heads pair with them), 16 (rows without a key in some or all blocks), 38 and
41 (a ring of two, where next and previous are one peer). Faults 1 and 5 of the paper's code: 1/N, no causal
path.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqplan.runtime.ring_attention import ring_attention
from seqplan.runtime.sequence_split import split
from tests.ranks import run_ranks
from tests.runtime.attention_cases import (
    FLOAT64_TOLERANCE,
    Case,
    assembled,
    on_this_rank,
    reference,
    relative_errors,
    with_gradients,
    world,
)

CASES = [
    *(Case(causal, kv_heads) for causal in (False, True) for kv_heads in (1, 2, 6)),
    *(Case(causal, heads=12, kv_heads=kv_heads) for causal in (False, True) for kv_heads in (1, 2, 4, 12)),
    *(
        Case(causal, kv_heads, padding=padding)
        for causal in (False, True)
        for kv_heads in (2, 6)
        for padding in ("right", "left", "holes", "all")
    ),
    Case(True, batch=1, head_dim=16, seq_len=48),
    Case(False, batch=3, head_dim=8, seq_len=72),
]


def _ring(
    rank: int, world_size: int, cases: list[Case], kernel: str, head_groups: int | None
) -> list[dict[str, Tensor]]:
    def attend(case: Case) -> dict[str, Tensor]:
        groups = head_groups if head_groups is None or case.kv_heads % head_groups == 0 else 1
        return on_this_rank(
            case,
            lambda q, k, v, valid: ring_attention(
                q,
                k,
                v,
                group=world(),
                causal=case.causal,
                valid_BS=valid,
                kernel=kernel,
                head_groups=groups,
            ),
            rank,
            world_size,
        )

    return [attend(case) for case in cases]


@pytest.mark.ranks
@pytest.mark.parametrize(("kernel", "head_groups"), [("flash", None), ("flash", 2), ("math", 2)])
@pytest.mark.parametrize("sp", [1, 2, 3, 4])
def test_output_and_gradients_equal_one_process(sp: int, kernel: str, head_groups: int | None) -> None:
    by_rank = run_ranks(sp, _ring, CASES, kernel, head_groups)
    for number, case in enumerate(CASES):
        errors = relative_errors(
            assembled([parts[number] for parts in by_rank], case.causal), reference(case)
        )
        assert max(errors.values()) <= FLOAT64_TOLERANCE, (case, errors)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float32, 2e-6),  # 2**-24 rounding over sums of 24 to 48 terms
        (torch.bfloat16, 2e-2),  # 2**-9 rounding of inputs, probabilities and results
        (torch.float16, 3e-3),  # 2**-12
    ],
)
def test_narrow_dtypes(dtype: torch.dtype, tolerance: float) -> None:
    cases = [
        Case(causal, padding=padding, dtype=dtype)
        for causal in (False, True)
        for padding in ("none", "holes", "left", "all")
    ]
    by_rank = run_ranks(4, _ring, cases, "flash", 2)
    for number, case in enumerate(cases):
        whole = assembled([parts[number] for parts in by_rank], case.causal)
        # 10: gradients come back in the dtype of the inputs
        assert {x.dtype for x in whole.values()} == {dtype}
        errors = relative_errors(whole, reference(case))
        assert max(errors.values()) <= tolerance, (case, errors)


@pytest.mark.ranks
@pytest.mark.parametrize("causal", [False, True])
def test_bfloat16_error_does_not_grow_with_the_ring(causal: bool) -> None:
    """2: every block's result rounded to bfloat16 before it is merged, so that error grows with the ring."""
    case = Case(causal, batch=1, seq_len=256, head_dim=16, kv_heads=6, dtype=torch.bfloat16)
    expected = reference(case)
    errors = {}
    for sp in (1, 2, 4, 8):
        by_rank = run_ranks(sp, _ring, [case], "flash", None)
        errors[sp] = relative_errors(assembled([parts[0] for parts in by_rank], causal), expected)
    for name in ("out", "dq", "dk", "dv"):
        # One rounding of a result alone; in any ring that of a block and that of the sum.
        assert errors[2][name] <= 1.05 * 2**0.5 * errors[1][name], (name, errors)
        assert max(errors[4][name], errors[8][name]) <= 1.1 * errors[2][name], (name, errors)


@pytest.mark.parametrize("kernel", ["flash", "math"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4, 12])
def test_heads_pair_as_in_torchs_grouped_attention(kv_heads: int, causal: bool, kernel: str) -> None:
    """25: (g h) against (h g); the truth here is F.scaled_dot_product_attention with enable_gqa."""
    q, k, v, cotangent = Case(causal, kv_heads, heads=12).inputs()
    ours = with_gradients(
        lambda q, k, v: ring_attention(q, k, v, group=None, causal=causal, kernel=kernel), q, k, v, cotangent
    )
    torchs = with_gradients(
        lambda q, k, v: F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal, enable_gqa=True
        ).transpose(1, 2),
        q,
        k,
        v,
        cotangent,
    )
    assert max(relative_errors(ours, torchs).values()) <= FLOAT64_TOLERANCE


@pytest.mark.parametrize("kernel", ["flash", "math"])
def test_the_scale_is_one_over_the_root_of_the_head_size_unless_given(kernel: str) -> None:
    """Fault 4 of the paper's code: 1/sqrt(hidden)."""
    case = Case(True)
    q, k, v, cotangent = case.inputs()
    for scale in (None, 0.3):
        ours = with_gradients(
            lambda q, k, v, scale=scale: ring_attention(  # type: ignore[misc]
                q, k, v, group=None, causal=True, scale=scale, kernel=kernel
            ),
            q,
            k,
            v,
            cotangent,
        )
        expected = reference(case, scale=scale or 5**-0.5)
        assert max(relative_errors(ours, expected).values()) <= FLOAT64_TOLERANCE


def _far_key(rank: int, world_size: int) -> tuple[float, float]:
    """d loss / d k[0, 0, 0, 0], by backward and by central difference, both as sums over the ranks."""
    case = Case(causal=True, batch=1, seq_len=12)
    q, k, v, cotangent = case.inputs()

    def loss(key: Tensor) -> tuple[Tensor, Tensor]:
        leaves = [split(x, 1, world_size, rank, True).requires_grad_() for x in (q, key, v)]
        out = ring_attention(*leaves, group=world(), causal=True)
        total = (out * split(cotangent, 1, world_size, rank, True)).sum()
        return total, torch.autograd.grad(total, leaves[1])[0]

    step = torch.zeros_like(k)
    step[0, 0, 0, 0] = 1e-5
    difference = (loss(k + step)[0] - loss(k - step)[0]) / 2e-5
    gradient = loss(k)[1]
    return float(gradient[0, 0, 0, 0]), float(difference)


@pytest.mark.ranks
@pytest.mark.parametrize("sp", [2, 3])
def test_the_gradient_of_a_far_key_is_its_finite_difference(sp: int) -> None:
    """5: a backward that uses the first block's keys again. Key 0, on rank 0, is seen by every rank."""
    by_rank = run_ranks(sp, _far_key)
    difference = sum(part for _, part in by_rank)
    assert abs(by_rank[sp - 1][1]) > 1e-3, "the last rank's tokens must depend on the key"
    assert by_rank[0][0] == pytest.approx(difference, rel=1e-7)


def _perturbed(rank: int, world_size: int) -> dict[tuple[int, bool], float]:
    """By (token, causal): how much this rank's output changes with that token."""
    changes = {}
    for position, causal in ((0, True), (0, False), (23, True), (23, False)):
        q, k, v, _ = Case(causal, batch=1).inputs()
        outputs = []
        for shift in (0.0, 1.0):
            moved = [x.clone() for x in (k, v)]
            for x in moved:
                x[0, position] += shift
            parts = [split(x, 1, world_size, rank, causal) for x in (q, *moved)]
            outputs.append(ring_attention(*parts, group=world(), causal=causal))
        changes[position, causal] = float((outputs[0] - outputs[1]).abs().max())
    return changes


@pytest.mark.ranks
def test_a_token_is_seen_by_later_ranks_and_causally_never_by_earlier_tokens() -> None:
    """14: each rank attended only to its own tokens, silently."""
    # 24 tokens on 3 ranks, zigzag: chunks of 4; rank 0 holds 0-3 and 20-23, rank 2 holds 8-11 and 12-15.
    first, second, third = run_ranks(3, _perturbed)
    assert third[0, True] > 1e-3
    assert third[0, False] > 1e-3
    assert (second[23, True], third[23, True]) == (0.0, 0.0)
    assert first[23, True] > 1e-3
    assert min(part[23, False] for part in (first, second, third)) > 1e-3
