"""Which tokens a rank holds. Expected splits are written out by hand."""

from __future__ import annotations

import pytest
import torch

from seqplan.runtime.sequence_split import chunks, local_positions, split, unsplit


@pytest.mark.parametrize(
    ("seq_len", "sp", "causal", "expected"),
    [
        (12, 1, False, [[(0, 12)]]),
        (12, 3, False, [[(0, 4)], [(4, 8)], [(8, 12)]]),
        # zigzag: rank r holds chunks r and 2 sp - 1 - r of 2 sp
        (12, 1, True, [[(0, 6), (6, 12)]]),
        (12, 2, True, [[(0, 3), (9, 12)], [(3, 6), (6, 9)]]),
        (12, 3, True, [[(0, 2), (10, 12)], [(2, 4), (8, 10)], [(4, 6), (6, 8)]]),
        (16, 4, True, [[(0, 2), (14, 16)], [(2, 4), (12, 14)], [(4, 6), (10, 12)], [(6, 8), (8, 10)]]),
    ],
)
def test_chunks(seq_len: int, sp: int, causal: bool, expected: list[list[tuple[int, int]]]) -> None:
    assert [chunks(seq_len, sp, rank, causal) for rank in range(sp)] == expected


def test_positions_follow_the_zigzag_of_four_ranks() -> None:
    """What went wrong elsewhere, 17: a rotary cache that is sliced in another order than the tokens."""
    by_rank = [local_positions(16, 4, rank, True).tolist() for rank in range(4)]
    assert by_rank == [[0, 1, 14, 15], [2, 3, 12, 13], [4, 5, 10, 11], [6, 7, 8, 9]]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sp", [1, 2, 3, 4, 8])
def test_split_and_unsplit_are_inverse_and_follow_the_positions(sp: int, causal: bool) -> None:
    x = torch.randn(2, 48, 3)
    shards = [split(x, 1, sp, rank, causal) for rank in range(sp)]
    for rank, shard in enumerate(shards):
        assert shard.is_contiguous()
        assert torch.equal(shard, x[:, local_positions(48, sp, rank, causal)])
    assert torch.equal(unsplit(shards, 1, causal), x)
    flipped = [split(x.transpose(0, 1), 0, sp, rank, causal) for rank in range(sp)]
    assert torch.equal(unsplit(flipped, 0, causal), x.transpose(0, 1))


@pytest.mark.parametrize("sp", [2, 3, 4])
def test_zigzag_gives_every_rank_the_same_causal_work(sp: int) -> None:
    """Keys seen, summed over a rank's tokens: position p sees p + 1."""
    work = {int((local_positions(24 * sp, sp, rank, True) + 1).sum()) for rank in range(sp)}
    assert len(work) == 1


@pytest.mark.parametrize(
    ("seq_len", "sp", "causal", "text"),
    [
        (2999, 4, False, r"seq_len=2999 is not a multiple of sp=4: pad the sequence"),
        (2999, 4, True, r"seq_len=2999 is not a multiple of 2 \* sp=8: pad the sequence"),
        (12, 4, True, r"seq_len=12 is not a multiple of 2 \* sp=8"),  # divides by sp but not by 2 sp
    ],
)
def test_a_length_that_does_not_divide_says_so(seq_len: int, sp: int, causal: bool, text: str) -> None:
    """What went wrong elsewhere, 18: a hang, or a cryptic size in backward."""
    with pytest.raises(AssertionError, match=text):
        chunks(seq_len, sp, 0, causal)


def test_unsplit_refuses_shards_of_unequal_length() -> None:
    with pytest.raises(AssertionError, match="rank 0 holds 3 of 8 tokens"):
        unsplit([torch.zeros(3), torch.zeros(5)], 0, False)
