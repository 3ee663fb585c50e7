"""Rows of scores: which parts a causal mask leaves to compute, softmax in place, dropout, products.

Everything here works on [M, R, columns] matrices; M matrices (batch row, kv head), R rows (position, then the
query heads of that kv head), columns in global key order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from seqplan.runtime.random_field import keep_mask
from seqplan.runtime.sequence_split import chunks
from seqplan.runtime.simulation.kernel_device import kernel_device

TILE_BYTES = {"cpu": 1 << 20, "cuda": 256 << 20}
"""Size of a scratch tile of scores: a core's L2 cache on CPU; large on CUDA, where a tile costs launches."""


@dataclass(frozen=True)
class Piece:
    """Scores that somebody sees: those of the local positions from `start` on with some keys of a block."""

    start: int
    keys: slice
    """Local positions within the block in hand."""
    columns: slice
    """The same keys as global positions."""
    diagonal: bool
    """The first len(keys) positions see only keys up to their own."""


def local_chunks(tokens: int, ring_size: int, rank: int, causal: bool) -> list[tuple[int, int]]:
    """The global ranges that `rank` holds; one range in a ring of one, which needs no even length."""
    return chunks(tokens * ring_size, ring_size, rank, causal and ring_size > 1)


def pieces(tokens: int, ring_size: int, rank: int, source: int, causal: bool) -> list[Piece]:
    """What this rank's queries see of the block of `source`. Query chunks ascend, so what sees is a tail."""
    own = local_chunks(tokens, ring_size, rank, causal)
    found = []
    for number, (start, stop) in enumerate(local_chunks(tokens, ring_size, source, causal)):
        size = stop - start
        keys = slice(number * size, (number + 1) * size)
        seeing = [i for i, (first, _) in enumerate(own) if first >= start or not causal]
        if seeing:
            diagonal = causal and own[seeing[0]][0] == start
            found.append(Piece(seeing[0] * size, keys, slice(start, stop), diagonal))
    return found


def row_ranges(tokens: int, ring_size: int, rank: int, causal: bool) -> list[tuple[slice, int]]:
    """Local positions with the number of columns that they see at most."""
    ranges = []
    for number, (start, stop) in enumerate(local_chunks(tokens, ring_size, rank, causal)):
        size = stop - start
        ranges.append((slice(number * size, (number + 1) * size), stop if causal else tokens * ring_size))
    return ranges


def tiles(x_MRC: Tensor) -> Iterator[tuple[slice, slice]]:
    """Matrices and rows of x in tiles of at most TILE_BYTES (or one row)."""
    matrices, rows, columns = x_MRC.shape
    budget = TILE_BYTES.get(kernel_device(x_MRC.device), TILE_BYTES["cuda"]) // x_MRC.itemsize
    if rows * columns <= budget:
        per_tile = budget // (rows * columns)
        for first in range(0, matrices, per_tile):
            yield slice(first, min(first + per_tile, matrices)), slice(0, rows)
        return
    per_tile = max(1, budget // columns)
    for matrix in range(matrices):
        for first in range(0, rows, per_tile):
            yield slice(matrix, matrix + 1), slice(first, min(first + per_tile, rows))


def row_softmax_(x_MRC: Tensor, may_be_blind: bool) -> None:
    """Softmax over the last dim, in place. With `may_be_blind` a row of -inf alone becomes 0, not NaN."""
    if x_MRC.is_contiguous() and not may_be_blind:
        torch.softmax(x_MRC, -1, out=x_MRC)
        return
    for matrices, rows in tiles(x_MRC):
        tile = x_MRC[matrices, rows]
        result = torch.softmax(tile, -1)
        if may_be_blind:
            result.masked_fill_(tile.amax(-1, keepdim=True) == -math.inf, 0.0)
        tile.copy_(result)


def product(a: Tensor, b: Tensor, wide: torch.dtype) -> Tensor:
    """a @ b of [M, ., .] in the accumulation dtype, whatever the dtype of a and b."""
    if a.dtype == b.dtype == wide:
        return torch.bmm(a, b)
    if kernel_device(a.device) == "cuda":  # tensor cores: narrow factors, wide sums
        narrow = b.dtype if a.dtype == wide else a.dtype
        return torch.bmm(a.to(narrow), b.to(narrow), out_dtype=wide)
    return torch.bmm(a.to(wide), b.to(wide))


def add_product(into: Tensor, a: Tensor, b: Tensor) -> None:
    """into += a @ b; `into` is in the accumulation dtype."""
    if a.dtype == b.dtype == into.dtype:
        into.baddbmm_(a, b)
    else:
        into += product(a, b, into.dtype)


@dataclass(frozen=True)
class Dropout:
    """Attention dropout as the custom operator takes it; see rsa.AttentionDropout."""

    seed: int
    p: float
    batch_rows_B: Tensor
    head_offset: int

    def of_group(self, positions_S: Tensor, heads: slice, kv_heads: int) -> GroupDropout:
        """The rows of one group of heads, numbered by batch row, head and position."""
        head_numbers = torch.arange(heads.start, heads.stop) + self.head_offset
        heads_kg = head_numbers.view(kv_heads, -1).to(positions_S.device)
        ids = (
            (self.batch_rows_B[:, None, None, None] * MAX_HEADS + heads_kg[None, :, None, :]) * MAX_POSITIONS
        ) + positions_S[None, None, :, None]
        return GroupDropout(self.seed, self.p, ids.flatten(0, 1).flatten(1))


MAX_POSITIONS, MAX_HEADS = 1 << 32, 1 << 12
"""Room for positions and heads in one 64-bit number; the hash takes its halves apart (random_field.py)."""


@dataclass(frozen=True)
class GroupDropout:
    """The mask of one group of heads, made again wherever a tile of it is needed."""

    seed: int
    p: float
    ids_MR: Tensor

    def keep(self, matrices: slice, rows: slice, columns: slice) -> Tensor:
        """-> [m, r, c] bool, True with probability 1 - p."""
        ids = self.ids_MR[matrices, rows]
        numbers = torch.arange(columns.start, columns.stop, device=ids.device)
        return keep_mask(self.seed, ids.flatten(), numbers, self.p).view(*ids.shape, -1)

    def apply_(self, x: Tensor, matrices: slice, rows: slice, columns: slice) -> Tensor:
        """Inverted dropout of a tile, in place."""
        return x.mul_(self.keep(matrices, rows, columns)).mul_(1.0 / (1.0 - self.p))
