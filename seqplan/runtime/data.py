"""What a rank trains on: its own rows and its own tokens of each step's batch, never a full sequence.

A row of the step's batch belongs to one dp rank, a chunk of its positions to one sp rank; only these
bytes are read, plus one more at the end of each chunk, because the label of a chunk's last token is the
first token of the next chunk: labels are shifted before the sequence is split. Which sample stands in
which row depends on the seed alone, so losses of different layouts are comparable.
Shapes: B sequences of a micro-batch, S tokens on this rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import Layout
from seqplan.planner.train_spec import TrainSpec
from seqplan.runtime.masked_tokens import mask_tokens
from seqplan.runtime.random_field import hash_bits, seed_of
from seqplan.runtime.sample_order import SampleOrder, global_row
from seqplan.runtime.sequence_split import chunks
from seqplan.runtime.text_files import ByteTokens, TextFiles
from seqplan.runtime.vocab_parallel import IGNORED_LABEL

NUM_BYTES = 256
"""Byte tokens are 0..255; the model's further ids are the mask (encoder) and the end of a file."""


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch as one rank holds it. Every rank of a (tp, pp) column has the same."""

    tokens: Tensor
    """[B, S] int64."""
    labels: Tensor
    """[B, S] int64; IGNORED_LABEL (-100) where there is nothing to predict."""
    valid: Tensor | None
    """[B, S] bool: keys that are not padding. None when every token of every sp rank's part is one."""
    positions: Tensor
    """[S] int64: place of this rank's tokens in the whole sequence."""
    batch_rows: Tensor
    """[B] int64: row of each sequence in the step's global batch."""

    def to(self, device: torch.device) -> MicroBatch:
        valid = None if self.valid is None else self.valid.to(device)
        return MicroBatch(
            self.tokens.to(device),
            self.labels.to(device),
            valid,
            self.positions.to(device),
            self.batch_rows.to(device),
        )


@dataclass(frozen=True)
class BatchPart:
    """Which part of each step's batch a rank reads."""

    seq_len: int
    global_batch_size: int
    micro_batch_size: int
    dp: int = 1
    dp_rank: int = 0
    sp: int = 1
    sp_rank: int = 0
    causal: bool = True

    @classmethod
    def of(cls, train: TrainSpec, layout: Layout, causal: bool, dp_rank: int, sp_rank: int) -> BatchPart:
        return cls(
            seq_len=train.seq_len,
            global_batch_size=train.global_batch_size,
            micro_batch_size=layout.micro_batch_size,
            dp=layout.dp,
            dp_rank=dp_rank,
            sp=layout.sp,
            sp_rank=sp_rank,
            causal=causal,
        )

    @property
    def num_microbatches(self) -> int:
        count, rest = divmod(self.global_batch_size, self.dp * self.micro_batch_size)
        assert rest == 0, "an illegal layout reached the runtime"
        return count

    def rows(self, micro_batch: int) -> list[int]:
        """Rows of the step's batch that stand in a micro-batch."""
        return [
            global_row(micro_batch, self.dp_rank, row, dp=self.dp, micro_batch_size=self.micro_batch_size)
            for row in range(self.micro_batch_size)
        ]

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """Positions [start, stop) of this rank's tokens, one or two pieces."""
        if self.sp == 1:  # a whole sequence may have any length
            return [(0, self.seq_len)]
        return chunks(self.seq_len, self.sp, self.sp_rank, self.causal)


class Data(ABC):
    """Micro-batches of any step; a step's number is the only state."""

    def __init__(self, part: BatchPart, num_samples: int, masked: bool, seed: int) -> None:
        self.part = part
        self.masked = masked
        self.seed = seed
        self.order = SampleOrder(num_samples, part.global_batch_size, seed)
        self.positions_S = torch.cat([torch.arange(start, stop) for start, stop in part.chunks])
        self.mask_token = -1
        self.num_plain_tokens = NUM_BYTES

    @abstractmethod
    def _read(self, step: int, row: int, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens start..stop-1 of the sample in that row; fewer where the sample ends."""

    @abstractmethod
    def _length(self, step: int, row: int) -> int:
        """Tokens of that sample, counting the one after its last position where there is one."""

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """This rank's micro-batches of a step (counted from 0), on the CPU."""
        return [self._micro_batch(step, self.part.rows(i)) for i in range(self.part.num_microbatches)]

    def _micro_batch(self, step: int, rows: list[int]) -> MicroBatch:
        pieces = [
            [self._padded(step, row, start, stop + 1) for start, stop in self.part.chunks] for row in rows
        ]
        tokens_BS = torch.from_numpy(np.stack([np.concatenate([p[:-1] for p in row]) for row in pieces]))
        next_BS = torch.from_numpy(np.stack([np.concatenate([p[1:] for p in row]) for row in pieces]))
        lengths_B = torch.tensor([self._length(step, row) for row in rows])
        real_BS = self.positions_S[None, :] < lengths_B[:, None]
        if self.masked:
            draws_B = torch.tensor([self.order.draw(step, row) for row in rows])
            tokens_BS, labels_BS = mask_tokens(
                tokens_BS,
                draws_B,
                self.positions_S,
                seed=self.seed,
                mask_token=self.mask_token,
                num_plain_tokens=self.num_plain_tokens,
            )
            labels_BS = labels_BS.where(real_BS, IGNORED_LABEL)
            tokens_BS = tokens_BS.where(real_BS, 0)
        else:
            has_next_BS = self.positions_S[None, :] + 1 < lengths_B[:, None]
            labels_BS = next_BS.where(has_next_BS, IGNORED_LABEL)
        # Decided by the whole rows, so that all sp ranks agree on whether a mask travels with the keys.
        padded = bool((lengths_B < self.part.seq_len).any())
        return MicroBatch(
            tokens=tokens_BS,
            labels=labels_BS,
            valid=real_BS if padded else None,
            positions=self.positions_S,
            batch_rows=torch.tensor(rows),
        )

    def _padded(self, step: int, row: int, start: int, stop: int) -> NDArray[np.int64]:
        tokens = self._read(step, row, start, stop)
        return np.pad(tokens, (0, stop - start - len(tokens)))


class TextData(Data):
    """Text files as byte tokens, cut into samples of seq_len that follow one another.

    A decoder learns the next token; an encoder (`masked`) guesses chosen tokens. The last sample is moved
    back so that it ends with the text (it overlaps the one before): every token is trained on and no
    sample is padded. Only a text shorter than one sample is padded, with `valid` and labels that say so.
    """

    def __init__(
        self, files: TextFiles, part: BatchPart, *, vocab_size: int, masked: bool, seed: int
    ) -> None:
        specials = special_tokens(vocab_size, masked)
        self.tokens = ByteTokens(files, specials.separator)
        # A decoder's sample needs one token more, the label of its last position.
        self._sample_tokens = part.seq_len if masked else part.seq_len + 1
        usable = len(self.tokens) if masked else len(self.tokens) - 1
        if usable < 1:
            raise SeqplanError(
                "The data holds a single token: there is nothing to predict.", "Give more text."
            )
        super().__init__(part, -(-usable // part.seq_len), masked, seed)
        self.mask_token = specials.mask

    def shortage(self) -> str | None:
        """What to say of a text with fewer distinct samples than one step takes."""
        seq_len, batch, samples = self.part.seq_len, self.part.global_batch_size, self.order.num_samples
        if samples >= batch:
            return None
        if len(self.tokens) < self._sample_tokens:
            given = f"the data's {len(self.tokens)} tokens do not fill one sequence of seq_len={seq_len}: it"
            return f"{given} is padded, and the same in all {batch} rows of every step; give more text."
        plural = "sequence" if samples == 1 else "sequences"
        return (
            f"the data gives {samples} distinct {plural} of seq_len={seq_len}, and a step takes"
            f" global_batch_size={batch}: it repeats some; give more text."
        )

    def _start(self, step: int, row: int) -> int:
        start = self.order.sample(step, row) * self.part.seq_len
        return max(0, min(start, len(self.tokens) - self._sample_tokens))

    def _length(self, step: int, row: int) -> int:
        return min(len(self.tokens) - self._start(step, row), self._sample_tokens)

    def _read(self, step: int, row: int, start: int, stop: int) -> NDArray[np.int64]:
        first = self._start(step, row)
        return self.tokens.read(first + start, first + min(stop, self._sample_tokens))


class SyntheticData(Data):
    """Random tokens, a function of (seed, draw, position): for tests and benchmarks.

    `length` gives the number of real tokens of each global row, to make padding.
    """

    def __init__(
        self,
        part: BatchPart,
        *,
        vocab_size: int,
        masked: bool,
        seed: int,
        length: Callable[[int], int] | None = None,
    ) -> None:
        super().__init__(part, part.global_batch_size, masked, seed)
        self.mask_token = vocab_size - 1
        self.num_plain_tokens = vocab_size - 1 if masked else vocab_size
        self._row_length = length

    def _length(self, step: int, row: int) -> int:
        return self.part.seq_len + 1 if self._row_length is None else self._row_length(row)

    def _read(self, step: int, row: int, start: int, stop: int) -> NDArray[np.int64]:
        positions = torch.arange(start, min(stop, self._length(step, row)))
        draw = torch.tensor([self.order.draw(step, row)])
        bits = hash_bits(seed_of(self.seed, "synthetic tokens"), draw, positions)[0]
        tokens: NDArray[np.int64] = (bits.long() % self.num_plain_tokens).numpy()
        return tokens


@dataclass(frozen=True)
class SpecialTokens:
    """Ids beyond the bytes; `separator` is None where the vocabulary has no room for it."""

    mask: int
    separator: int | None


def special_tokens(vocab_size: int, masked: bool) -> SpecialTokens:
    """The first ids after the bytes: the mask of an encoder, then the end of a file."""
    needed = NUM_BYTES + 1 if masked else NUM_BYTES
    if vocab_size < needed:
        what = "the 256 bytes and the mask" if masked else "the 256 bytes"
        raise SeqplanError(
            f"vocab_size={vocab_size} is too small for byte tokens: {what} need {needed} ids.",
            f"Plan a model with vocab_size of at least {needed}.",
        )
    return SpecialTokens(mask=NUM_BYTES if masked else -1, separator=needed if vocab_size > needed else None)
