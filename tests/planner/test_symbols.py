"""Symbols of the inventory that mirror a rule of the runtime."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from seqplan.planner.memory.gradient_buckets import BUCKET_ELEMENTS, buckets
from seqplan.planner.memory.symbols import TILE_BYTES, ring_head_groups, score_tile
from seqplan.runtime.attention import rsa_scores
from seqplan.runtime.attention.head_groups import number_of_groups
from seqplan.runtime.data_parallel import BUCKET_BYTES, _buckets


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 4, 5, 6, 8, 12, 36])
def test_head_groups_are_the_runtimes(kv_heads: int) -> None:
    sizes = [1, 1 << 20, (1 << 20) * 2 - 1, 1 << 21, (1 << 20) * 5, 1 << 23, 1 << 30]
    planned = ring_head_groups(np.full(len(sizes), float(kv_heads)), np.array(sizes, dtype=np.float64))
    assert planned.tolist() == [number_of_groups(kv_heads, size) for size in sizes]


@pytest.mark.parametrize(
    "shape", [(1, 64, 64), (6, 300, 200), (3, 1024, 700), (2, 900, 300_000), (5, 512, 512)]
)
def test_tiles_of_scores_are_the_runtimes(shape: tuple[int, int, int]) -> None:
    assert {True: rsa_scores.TILE_BYTES["cpu"], False: rsa_scores.TILE_BYTES["cuda"]} == TILE_BYTES
    scores = torch.empty(shape, device="meta", dtype=torch.bfloat16)  # a meta tensor is cut as on a GPU
    largest = max(scores[matrices, rows].numel() for matrices, rows in rsa_scores.tiles(scores))
    assert float(score_tile(float(shape[0]), shape[1], shape[2], 2, on_cpu=False)) == largest


def test_buckets_of_gradients_are_the_runtimes() -> None:
    assert BUCKET_ELEMENTS * 4 == BUCKET_BYTES
    head, layer, embedding = (1 << 20, 256), (3 << 20, 512, 2 << 20), (9 << 20, 1000)
    sizes = [*head, *layer * 5, *embedding]
    weights = {str(i): torch.nn.Parameter(torch.empty(size, device="meta")) for i, size in enumerate(sizes)}
    expected = [sum(weights[name].numel() for name in names) for names in _buckets(list(weights), weights)]
    assert list(buckets(head, layer, 5, embedding)) == expected
    assert len(expected) > 2
