"""Chunks of the interleaved schedule that differ in layers: where layers lie, which splits are allowed."""

from __future__ import annotations

import pytest

from seqplan.planner.layout_defaults import complete_layout
from seqplan.planner.time_model import time_estimate
from seqplan.planner.timing.event_simulation import StageDurations, makespan_s
from seqplan.planner.virtual_stages import (
    chunk_counts,
    chunk_layers,
    every_chunk_works,
    layers_in_flight,
    uneven_chunks,
)
from tests.planner.samples import decoder, question, trainer

LLAMA3 = (7, *(8,) * 14, 7)
"""126 layers on 16 stages, one less on either end (2407.21783, 3.3.2)."""


def test_what_is_missing_is_missing_at_the_ends() -> None:
    # The first model chunk of the first stage has only the embedding, the last one of the last only the head.
    assert chunk_layers(LLAMA3, 0, 8) == (0, 1, 1, 1, 1, 1, 1, 1)
    assert chunk_layers(LLAMA3, 15, 8) == (1, 1, 1, 1, 1, 1, 1, 0)
    assert chunk_layers(LLAMA3, 0, 4) == (1, 2, 2, 2)
    assert chunk_layers(LLAMA3, 7, 4) == (2, 2, 2, 2)


def test_large_chunks_stand_under_one_another() -> None:
    # 8 layers in 3 chunks are 3+3+2; 7 lack one of the large ones, at their end.
    assert [chunk_layers(LLAMA3, stage, 3) for stage in (0, 7, 15)] == [(2, 3, 2), (3, 3, 2), (3, 2, 2)]
    for chunks in range(2, 9):
        for stage, layers in enumerate(LLAMA3):
            assert sum(chunk_layers(LLAMA3, stage, chunks)) == layers


@pytest.mark.parametrize(
    ("layers", "chunks", "works"),
    [
        (LLAMA3, 8, True),
        (LLAMA3, 9, False),  # 9 chunks of a middle stage's 8 layers
        ((8, 7, 8, 7), 8, False),  # an empty chunk in the middle
        ((6, 8, 8, 8), 8, False),  # two empty chunks, one embedding
        ((4, 4, 4, 4), 3, True),
    ],
)
def test_an_empty_chunk_needs_an_end_of_the_model(layers: tuple[int, ...], chunks: int, works: bool) -> None:
    assert every_chunk_works(layers, chunks) is works


def test_the_chunks_that_are_tried_split_the_longest_stage_evenly() -> None:
    assert chunk_counts(LLAMA3) == (2, 4, 8)
    assert chunk_counts((6, 6)) == (2, 3, 6)
    assert chunk_counts((1, 1)) == ()
    assert uneven_chunks(LLAMA3, 8)
    assert uneven_chunks((4, 4), 3)
    assert not uneven_chunks((4, 4), 2)


@pytest.mark.parametrize("stage", [0, 1, 3])
@pytest.mark.parametrize(("chunks", "microbatches"), [(2, 4), (2, 8), (3, 4), (3, 40), (8, 400)])
def test_equal_chunks_are_counted_as_megatron_warms_up(stage: int, chunks: int, microbatches: int) -> None:
    # Megatron-LM, schedules.py: 2 (p - 1 - i) + (v - 1) p forwards ahead, and the one in hand.
    warm = 2 * (4 - 1 - stage) + (chunks - 1) * 4 + 1
    expected = 5 * min(warm, microbatches * chunks)
    assert layers_in_flight((5,) * chunks, stage, 4, microbatches) == expected


def test_unequal_chunks_by_hand() -> None:
    # Two stages, two chunks, stage 0 with (1, 2) layers, four micro-batches a b c d. Its forwards are
    # a0 b0 | a1 b1 | c0 d0 | c1 d1 with warm-up 4 (2 + 2), its backwards a1 b1 a0 b0 c1 d1 c0 d0.
    # Before each backward: 1+1+2+2+1 = 7; -2 +1 = 6; -2 +2 = 6; -1 +2 = 7; then only less.
    assert layers_in_flight((1, 2), 0, 2, 4) == 7
    # Stage 1 with (2, 1): warm-up 2: a0 b0 a1 = 5 | -1 +1 = 5 | -1 +2 = 6 | -2 +2 = 6 | -2 +1 = 5 | -1 +1.
    assert layers_in_flight((2, 1), 1, 2, 4) == 6
    # As many micro-batches as stages: all are in flight at once on the first stage.
    assert layers_in_flight(chunk_layers(LLAMA3, 0, 8), 0, 16, 16) == 7 * 16


def test_an_end_in_place_of_a_layer_takes_the_textbooks_time() -> None:
    # Embedding and head as long as a layer: 128 equal chunks on 16 stages, so m v + p - 1 of them in a
    # row (Narayanan et al. 2104.04473, 2.2), forward 1 and backward 2.
    middle = StageDurations(8.0, 16.0)
    first = StageDurations(8.0, 16.0, first_s=(1.0, 2.0), chunk_layers=chunk_layers(LLAMA3, 0, 8))
    last = StageDurations(8.0, 16.0, last_s=(1.0, 2.0), chunk_layers=chunk_layers(LLAMA3, 15, 8))
    for microbatches in (16, 32):
        found = makespan_s("interleaved", [first, *[middle] * 14, last], microbatches, 0.0, 8)
        assert float(found[0]) == pytest.approx(3.0 * (8 * microbatches + 15), rel=1e-12)


def test_unequal_chunks_cost_time() -> None:
    # 8 layers in 2 equal chunks wait half as long as in one; in chunks of 3, 3 and 2 more than a third.
    free = trainer(schedules=("none", "1f1b", "interleaved"))
    asked = question(decoder(vocab_size=1024), gpus=4, global_batch_size=16, implementation=free)
    bubble = {}
    for chunks in (2, 3, 4):
        fields = {"pp": 4, "schedule": "interleaved", "num_virtual_stages": chunks}
        bubble[chunks] = time_estimate(asked, complete_layout(asked, fields)).by_kind["bubble"]
    assert bubble[4] == pytest.approx(bubble[2] / 2, rel=0.05)
    assert bubble[3] > 1.1 * bubble[2] * 2 / 3
