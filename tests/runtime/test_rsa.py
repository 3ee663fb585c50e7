"""The paper's ring self-attention on 1 to 4 ranks equals explicit attention on one, gradients included.

Faults of the authors' code that this holds: 1 (dQ, dK, dV divided by the ring's size), 4 (the scale), 5 (no
causal path), 9 (no mask larger than this rank's rows). What went wrong elsewhere: 33 (1/N again), 48 (dropout
masks that repeat between shards or change with the layout).
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from seqplan.runtime.attention.rsa_scores import TILE_BYTES, pieces, tiles
from seqplan.runtime.random_field import keep_mask
from seqplan.runtime.rsa import AttentionDropout, rsa
from seqplan.runtime.sequence_split import local_positions
from tests.ranks import run_ranks
from tests.runtime.attention_cases import (
    FLOAT64_TOLERANCE,
    Case,
    assembled,
    explicit_attention,
    on_this_rank,
    reference,
    relative_errors,
    with_gradients,
    world,
)

CASES = [
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

SEED, P = 12345, 0.3


def _dropout(case: Case, first_row: int = 40) -> AttentionDropout:
    return AttentionDropout(SEED, P, torch.arange(first_row, first_row + case.batch), head_offset=0)


def _rsa(
    rank: int, world_size: int, cases: list[Case], head_groups: int, dropped: bool
) -> list[dict[str, Tensor]]:
    def attend(case: Case) -> dict[str, Tensor]:
        groups = head_groups if case.kv_heads % head_groups == 0 else 1
        return on_this_rank(
            case,
            lambda q, k, v, valid: rsa(
                q,
                k,
                v,
                group=world(),
                causal=case.causal,
                valid_BS=valid,
                head_groups=groups,
                dropout=_dropout(case) if dropped else None,
            ),
            rank,
            world_size,
        )

    return [attend(case) for case in cases]


@pytest.mark.ranks
@pytest.mark.parametrize("head_groups", [1, 2])
@pytest.mark.parametrize("sp", [1, 2, 3, 4])
def test_output_and_gradients_equal_one_process(sp: int, head_groups: int) -> None:
    by_rank = run_ranks(sp, _rsa, CASES, head_groups, False)
    for number, case in enumerate(CASES):
        errors = relative_errors(
            assembled([parts[number] for parts in by_rank], case.causal), reference(case)
        )
        assert max(errors.values()) <= FLOAT64_TOLERANCE, (case, errors)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)],  # sums of float32 roundings; bfloat16's 2**-9
)
def test_narrow_dtypes(dtype: torch.dtype, tolerance: float) -> None:
    cases = [
        Case(causal, padding=padding, dtype=dtype)
        for causal in (False, True)
        for padding in ("none", "holes")
    ]
    by_rank = run_ranks(3, _rsa, cases, 2, False)
    for number, case in enumerate(cases):
        whole = assembled([parts[number] for parts in by_rank], case.causal)
        assert {x.dtype for x in whole.values()} == {dtype}
        errors = relative_errors(whole, reference(case))
        assert max(errors.values()) <= tolerance, (case, errors)


def _with_dropout(case: Case) -> dict[str, Tensor]:
    """Explicit attention with the mask written out from its definition: one value for each global index."""
    keep = torch.empty(case.batch, case.heads, case.seq_len, case.seq_len, dtype=torch.bool)
    positions = torch.arange(case.seq_len)
    for row in range(case.batch):
        for head in range(case.heads):
            queries = ((40 + row) * 2**12 + head) * 2**32 + positions
            keep[row, head] = keep_mask(SEED, queries, positions, P)
    q, k, v, cotangent = case.inputs()
    return with_gradients(
        lambda q, k, v: explicit_attention(
            q, k, v, causal=case.causal, valid_BL=case.padded(), keep_BHLL=keep, p=P
        ),
        q,
        k,
        v,
        cotangent,
    )


@pytest.mark.ranks
@pytest.mark.parametrize(("sp", "head_groups"), [(1, 1), (2, 2), (3, 1), (4, 2)])
def test_dropout_is_the_same_on_every_layout(sp: int, head_groups: int) -> None:
    """48: and its backward draws the same mask again."""
    cases = [Case(causal, padding=padding) for causal in (False, True) for padding in ("none", "holes")]
    by_rank = run_ranks(sp, _rsa, cases, head_groups, True)
    for number, case in enumerate(cases):
        actual = assembled([parts[number] for parts in by_rank], case.causal)
        errors = relative_errors(actual, _with_dropout(case))
        assert max(errors.values()) <= FLOAT64_TOLERANCE, (case, errors)


def test_dropout_differs_between_rows_heads_and_seeds_and_follows_the_head_offset() -> None:
    """48, for tp: a rank with the later heads draws what one process draws for those heads."""
    case = Case(False, kv_heads=6, batch=1, seq_len=64)
    q, k, v, _ = case.inputs()
    same = [x[:, :, :1].expand(1, 64, 6, 5).contiguous() for x in (q, k, v)]

    def attend(x: list[Tensor], seed: int = SEED, row: int = 0, offset: int = 0) -> Tensor:
        drop = AttentionDropout(seed, P, torch.tensor([row]), offset)
        return rsa(*x, group=None, causal=False, dropout=drop)

    whole = attend(same)
    for other in (attend(same, seed=SEED + 1), attend(same, row=1), whole.roll(1, dims=2)):
        assert (whole - other).abs().amax(dim=(1, 3)).min() > 1e-3
    later = attend([x[:, :, 3:].contiguous() for x in same], offset=3)
    torch.testing.assert_close(later, whole[:, :, 3:], rtol=0, atol=1e-14)


def test_dropout_keeps_the_mean() -> None:
    """E[mask / (1 - p)] = 1: over 2 million entries the mean is within 5 standard deviations."""
    values = torch.ones(1, 512, 8, 4, dtype=torch.float64)
    drop = AttentionDropout(SEED, P, torch.zeros(1, dtype=torch.int64), 0)
    out = rsa(
        torch.zeros_like(values), torch.zeros_like(values), values, group=None, causal=False, dropout=drop
    )
    deviation = math.sqrt(P / (1 - P) / (8 * 512 * 512))
    assert abs(float(out[..., 0].mean()) - 1.0) < 5 * deviation
    assert float(out.std()) > 0


def _masked(
    rank: int, world_size: int, cases: list[Case], mask_shapes: list[tuple[int, int]]
) -> list[dict[str, Tensor]]:
    parts = []
    for case in cases:
        rows = local_positions(case.seq_len, world_size, rank, case.causal and world_size > 1)
        for shape in mask_shapes:
            mask = _mask(case, shape)[:, :, rows]
            parts.append(
                on_this_rank(
                    case,
                    lambda q, k, v, valid, mask=mask, case=case: rsa(  # type: ignore[misc]
                        q, k, v, group=world(), causal=case.causal, valid_BS=valid, mask=mask, head_groups=2
                    ),
                    rank,
                    world_size,
                )
            )
    return parts


def _mask(case: Case, shape: tuple[int, int]) -> Tensor:
    """Packed documents and a random bias; one row of scores is hidden altogether."""
    generator = torch.Generator().manual_seed(3)
    mask = torch.randn(*shape, case.seq_len, case.seq_len, dtype=torch.float64, generator=generator)
    document = torch.arange(case.seq_len) // 7
    mask = mask.masked_fill(document[:, None] != document[None, :], -math.inf)
    mask[:, :, 11] = -math.inf
    return mask


@pytest.mark.ranks
@pytest.mark.parametrize("sp", [1, 2, 3])
def test_any_additive_mask(sp: int) -> None:
    cases = [Case(False), Case(True), Case(True, padding="holes")]
    shapes = [(1, 1), (2, 1), (1, 6), (2, 6)]
    by_rank = run_ranks(sp, _masked, cases, shapes)
    numbered = iter(range(len(cases) * len(shapes)))
    for case in cases:
        for shape in shapes:
            number = next(numbered)
            q, k, v, cotangent = case.inputs()
            mask = _mask(case, shape)
            expected = with_gradients(
                lambda q, k, v, mask=mask, case=case: explicit_attention(  # type: ignore[misc]
                    q, k, v, causal=case.causal, valid_BL=case.padded(), mask=mask
                ),
                q,
                k,
                v,
                cotangent,
            )
            errors = relative_errors(assembled([parts[number] for parts in by_rank], case.causal), expected)
            assert max(errors.values()) <= FLOAT64_TOLERANCE, (case, shape, errors)


@pytest.mark.parametrize(
    ("sp", "causal"), [(1, True), (2, True), (3, True), (4, True), (2, False), (3, False)]
)
def test_pieces_cover_what_somebody_sees(sp: int, causal: bool) -> None:
    """Every visible pair of positions once; nothing that is wholly hidden; the same work on every rank."""
    tokens, length = 4, 4 * sp
    work = set()
    for rank in range(sp):
        rows = local_positions(length, sp, rank, causal and sp > 1)
        seen = torch.zeros(tokens, length, dtype=torch.int64)
        for source in range(sp):
            columns = local_positions(length, sp, source, causal and sp > 1)
            for piece in pieces(tokens, sp, rank, source, causal):
                assert columns[piece.keys].tolist() == list(range(piece.columns.start, piece.columns.stop))
                seen[piece.start :, piece.columns] += 1
        visible = (
            rows[:, None] >= torch.arange(length)[None, :]
            if causal
            else torch.ones_like(seen, dtype=torch.bool)
        )
        assert seen.max() == 1
        assert (seen[visible] == 1).all()
        work.add(int(seen.sum()))
    assert len(work) == 1
    if causal and sp > 1:  # per rank: half of the other blocks, three quarters of its own
        assert work == {tokens * tokens // 4 * (2 * (sp - 1) + 3)}


def test_tiles_cover_a_tensor_once_within_the_budget() -> None:
    for shape in ((3, 5, 7), (4, 600, 1024), (2, 3, TILE_BYTES["cpu"])):
        x = torch.zeros(shape, dtype=torch.int8)
        for matrices, rows in tiles(x):
            assert x[matrices, rows].nbytes <= TILE_BYTES["cpu"]
            x[matrices, rows] += 1
        assert (x == 1).all()
