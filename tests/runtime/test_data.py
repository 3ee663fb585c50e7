"""Micro-batches: every layout trains on the same tokens with the same labels; masks and padding."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from seqplan.planner.errors import SeqplanError
from seqplan.runtime.data import BatchPart, Data, SyntheticData, TextData, special_tokens
from seqplan.runtime.text_files import TextFiles
from seqplan.runtime.vocab_parallel import IGNORED_LABEL

SEQ_LEN = 24
BATCH = 8
TEXT = bytes((7 * i + i // 11) % 251 for i in range(1, 1500))
"""Any bytes; 251 is prime, so that samples differ."""

LAYOUTS = [  # dp, sp, micro_batch_size; 24 positions split into 2 * 3 zigzag chunks and the like
    (1, 1, 8),
    (1, 1, 2),
    (4, 1, 1),
    (2, 2, 2),
    (1, 3, 4),
    (2, 4, 1),
]


@pytest.fixture
def files(tmp_path: Path) -> TextFiles:
    for i, (start, stop) in enumerate(pairwise([0, 5, 700, 701, len(TEXT)])):
        (tmp_path / f"{i}.txt").write_bytes(TEXT[start:stop].replace(b"\0", b"\1"))
    return TextFiles.find([tmp_path])


def part_of(dp: int, sp: int, micro_batch_size: int, causal: bool) -> BatchPart:
    return BatchPart(
        seq_len=SEQ_LEN,
        global_batch_size=BATCH,
        micro_batch_size=micro_batch_size,
        dp=dp,
        sp=sp,
        causal=causal,
    )


def text_data(
    files: TextFiles, part: BatchPart, masked: bool, seed: int = 5, vocab_size: int = 300
) -> TextData:
    return TextData(files, part, vocab_size=vocab_size, masked=masked, seed=seed)


def whole_step(
    make: type, files: TextFiles, part: BatchPart, step: int, masked: bool
) -> tuple[Tensor, Tensor]:
    """Tokens and labels [BATCH, SEQ_LEN] put together from what all ranks of a layout hold."""
    tokens = torch.full((BATCH, SEQ_LEN), -1)
    labels = torch.full((BATCH, SEQ_LEN), -1)
    for dp_rank in range(part.dp):
        for sp_rank in range(part.sp):
            data: Data
            if make is TextData:
                data = text_data(files, replace(part, dp_rank=dp_rank, sp_rank=sp_rank), masked)
            else:
                mine = replace(part, dp_rank=dp_rank, sp_rank=sp_rank)
                data = SyntheticData(mine, vocab_size=300, masked=masked, seed=5)
            micro_batches = data.micro_batches(step)
            assert len(micro_batches) == BATCH // (part.dp * part.micro_batch_size)
            for micro_batch in micro_batches:
                assert micro_batch.tokens.shape == (part.micro_batch_size, SEQ_LEN // part.sp)
                assert micro_batch.valid is None
                place = torch.meshgrid(micro_batch.batch_rows, micro_batch.positions, indexing="ij")
                assert (tokens[place] == -1).all()  # nobody else holds these
                tokens[place] = micro_batch.tokens
                labels[place] = micro_batch.labels
    return tokens, labels


@pytest.mark.parametrize("make", [TextData, SyntheticData])
@pytest.mark.parametrize("masked", [False, True])
def test_every_layout_has_the_same_batch(files: TextFiles, masked: bool, make: type) -> None:
    expected = whole_step(make, files, part_of(1, 1, BATCH, not masked), 3, masked)
    assert (expected[0] >= 0).all()
    for dp, sp, micro_batch_size in LAYOUTS:
        got = whole_step(make, files, part_of(dp, sp, micro_batch_size, not masked), 3, masked)
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_labels_are_the_next_tokens_of_the_text(files: TextFiles) -> None:
    """Against the text itself, with ends of files; across every shard boundary of a zigzag split."""
    row = []
    for path in files.paths:
        row += [*path.read_bytes(), 256]
    tokens, labels = whole_step(TextData, files, part_of(1, 3, 4, causal=True), 0, False)
    starts = set()
    for sample in range(BATCH):
        sequence = [*tokens[sample].tolist(), int(labels[sample, -1])]
        assert sequence[1:] == labels[sample].tolist()
        found = [i for i in range(len(row) - SEQ_LEN) if row[i : i + SEQ_LEN + 1] == sequence]
        assert found
        starts.add(found[0])
    assert len(starts) == BATCH


def test_one_epoch_trains_on_every_token(files: TextFiles) -> None:
    data = text_data(files, BatchPart(SEQ_LEN, 1, 1), masked=False)
    num_tokens = len(data.tokens)
    seen: set[int] = set()
    for step in range(data.order.num_samples):
        start = data._start(step, 0)
        assert start + SEQ_LEN + 1 <= num_tokens  # no sample is padded
        seen.update(range(start + 1, start + SEQ_LEN + 1))
    assert seen == set(range(1, num_tokens))  # as labels; the first token has nothing before it
    assert data.order.num_samples == -(-(num_tokens - 1) // SEQ_LEN)


def test_another_seed_is_another_order(files: TextFiles) -> None:
    part = BatchPart(SEQ_LEN, BATCH, BATCH)
    one, two = (text_data(files, part, False, seed).micro_batches(0)[0].tokens for seed in (0, 1))
    assert not torch.equal(one, two)


def test_masking_follows_bert(files: TextFiles) -> None:
    """Shares within 5 standard deviations of 15 %, and of 80 and 10 % of these (arXiv 1810.04805, 3.1)."""
    part = BatchPart(1024, 64, 64, causal=False)
    plain = SyntheticData(part, vocab_size=300, masked=False, seed=2)
    data = SyntheticData(part, vocab_size=300, masked=True, seed=2)
    plain.num_plain_tokens = data.num_plain_tokens
    original = plain.micro_batches(0)[0].tokens
    micro_batch = data.micro_batches(0)[0]
    chosen = micro_batch.labels != IGNORED_LABEL
    n = original.numel()
    assert abs(chosen.sum() - 0.15 * n) < 5 * (n * 0.15 * 0.85) ** 0.5
    assert torch.equal(micro_batch.labels[chosen], original[chosen])
    assert torch.equal(micro_batch.tokens[~chosen], original[~chosen])
    masked = micro_batch.tokens[chosen] == data.mask_token
    kept = micro_batch.tokens[chosen] == original[chosen]
    n = int(chosen.sum())
    assert abs(masked.sum() - 0.8 * n) < 5 * (n * 0.8 * 0.2) ** 0.5
    # A random token is by chance the original one time in 299.
    assert abs(kept.sum() - (0.1 + 0.1 / 299) * n) < 5 * (n * 0.1 * 0.9) ** 0.5
    # A later epoch masks other positions: the choice depends on the draw, not on the sample.
    again = data.micro_batches(1)[0]
    assert not torch.equal(again.labels != IGNORED_LABEL, chosen)


@pytest.mark.parametrize("masked", [False, True])
def test_a_text_shorter_than_a_sample_is_padded(tmp_path: Path, masked: bool) -> None:
    (tmp_path / "short.txt").write_bytes(b"0123456789")
    files = TextFiles.find([tmp_path / "short.txt"])
    num_real = 11  # and the end of the file
    parts = [replace(part_of(1, 4, 8, not masked), sp_rank=sp_rank) for sp_rank in range(4)]
    for part in parts:
        micro_batch = text_data(files, part, masked).micro_batches(0)[0]
        # All sp ranks have a mask, also those that hold nothing but tokens or nothing but padding.
        assert micro_batch.valid is not None
        real = (micro_batch.positions < num_real).expand(8, -1)
        assert torch.equal(micro_batch.valid, real)
        assert (micro_batch.labels[~real] == IGNORED_LABEL).all()
        assert (micro_batch.tokens[~real] == 0).all()
        if not masked:
            has_next = (micro_batch.positions < num_real - 1).expand(8, -1)
            assert torch.equal(micro_batch.labels != IGNORED_LABEL, has_next)


DISTINCT = "the data gives {} of seq_len=24, and a step takes global_batch_size=8: it repeats some"


@pytest.mark.parametrize(
    ("size", "says"),
    [  # a file of `size` bytes and its end: size + 1 tokens, of which each but the first can be a label
        (9, "the data's 10 tokens do not fill one sequence of seq_len=24: it is padded, and the same in "),
        (24, DISTINCT.format("1 distinct sequence")),
        (25, DISTINCT.format("2 distinct sequences")),
        (24 * 7, DISTINCT.format("7 distinct sequences")),
        (24 * 7 + 1, None),
    ],
)
def test_a_text_of_too_few_samples_is_told(tmp_path: Path, size: int, says: str | None) -> None:
    (tmp_path / "short.txt").write_bytes(TEXT[:size].replace(b"\0", b"\1"))
    said = text_data(TextFiles.find([tmp_path]), part_of(1, 1, BATCH, True), masked=False).shortage()
    assert (said is None) if says is None else (said is not None and said.startswith(says)), said


def test_synthetic_padding_gives_unequal_counts() -> None:
    part = BatchPart(SEQ_LEN, 4, 2, causal=True)
    data = SyntheticData(part, vocab_size=50, masked=False, seed=0, length=lambda row: 24 if row < 2 else row)
    full, short = data.micro_batches(0)
    assert full.valid is None
    assert short.valid is not None
    assert short.valid.sum(1).tolist() == [2, 3]
    assert (short.labels != IGNORED_LABEL).sum(1).tolist() == [1, 2]
    assert (full.labels != IGNORED_LABEL).sum(1).tolist() == [23, 23]
    assert int(full.tokens.max()) < 50


def test_odd_length_without_sp() -> None:
    data = SyntheticData(BatchPart(7, 2, 2), vocab_size=50, masked=False, seed=0)
    assert data.micro_batches(0)[0].positions.tolist() == list(range(7))


@pytest.mark.parametrize(
    ("vocab_size", "masked", "mask", "separator"),
    [(256, False, -1, None), (257, False, -1, 256), (257, True, 256, None), (30522, True, 256, 257)],
)
def test_special_tokens(vocab_size: int, masked: bool, mask: int, separator: int | None) -> None:
    specials = special_tokens(vocab_size, masked)
    assert (specials.mask, specials.separator) == (mask, separator)


@pytest.mark.parametrize(("vocab_size", "masked", "needed"), [(255, False, 256), (256, True, 257)])
def test_a_vocabulary_too_small_for_bytes(vocab_size: int, masked: bool, needed: int) -> None:
    with pytest.raises(SeqplanError, match=f"vocab_size={vocab_size} is too small .* need {needed} ids"):
        special_tokens(vocab_size, masked)


def test_a_single_token_is_no_data(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_bytes(b"1")
    files = TextFiles.find([tmp_path])
    with pytest.raises(SeqplanError, match="nothing to predict"):
        text_data(files, BatchPart(SEQ_LEN, 1, 1), masked=False, vocab_size=256)
