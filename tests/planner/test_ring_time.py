"""What of a ring's hops stays exposed: by hand, and against the threshold of the overlap."""

from __future__ import annotations

from typing import Any

import pytest

from seqplan.planner.question import Question
from seqplan.planner.time_model import time_estimate
from tests.planner.formula_cases import cluster, decoder, encoder, layout, question

EXACT = 1e-9
FREE_MEMORY: dict[str, Any] = {"memory_bytes_per_s": 1e30}
"""Nothing waits for the device's memory: only FLOPs and links cost time."""


def kind(asked: Question, name: str, **fields: Any) -> float:
    """Seconds of one kind."""
    return time_estimate(asked, layout(asked, **fields)).by_kind[name]


def ring_question(seq_len: int, **changes: Any) -> Question:
    return question(
        decoder(num_layers=1, num_kv_heads=8),
        seq_len=seq_len,
        gpus=8,
        global_batch_size=1,
        on=cluster(**FREE_MEMORY, **changes),
    )


@pytest.mark.parametrize("seq_len", [2048, 65536])
def test_ring_hops_hide_behind_blocks(seq_len: int) -> None:
    # 8 ranks, h = 512, full heads, bf16: forward hop 2 x 2 x 512 x S bytes, block 2 S^2 x 512 FLOPs
    # (zigzag halves).
    s = seq_len / 8
    hop, gradient_hop = 4 * 512 * s / 100e9, 8 * 512 * s / 100e9
    block = 2 * s * s * 512 / 50e12
    back = 2.5 * block
    forward = 7 * max(0, hop - block)
    backward = (
        2 * max(0, hop - back)
        + 5 * max(0, hop + gradient_hop - back)
        + max(0, gradient_hop - back)
        + gradient_hop  # home
    )
    found = kind(ring_question(seq_len), "sp", sp=8)
    assert found == pytest.approx(forward + backward, rel=EXACT)
    if seq_len == 65536:
        assert found == pytest.approx(gradient_hop, rel=EXACT)  # all but the last hop is hidden


@pytest.mark.parametrize(("kv_heads", "causal"), [(8, True), (1, True), (8, False)])
def test_ring_overlap_threshold(kv_heads: int, causal: bool) -> None:
    # A forward hop is hidden from S = e g F / B tokens a rank on (causal zigzag), half of that when not
    # causal:
    # F = 50 TFLOP/s achieved, B = 100 GB/s one way, e = 2, g = kv heads / heads.
    make = decoder if causal else encoder
    threshold = 2 * kv_heads / 8 * 50e12 / 100e9 / (1 if causal else 2)

    def forward_exposed(tokens: float) -> float:
        asked = question(
            make(num_layers=1, num_kv_heads=kv_heads),
            seq_len=int(8 * tokens),
            gpus=8,
            global_batch_size=1,
            on=cluster(**FREE_MEMORY),
        )
        one, again = kind(asked, "sp", sp=8), kind(asked, "sp", sp=8, recompute="full")
        return again - one  # recomputation repeats the forward's hops only

    assert forward_exposed(threshold * 1.05) == pytest.approx(0.0, abs=1e-12)
    assert forward_exposed(threshold * 0.9) > 1e-7


def test_ring_inside_a_node_beats_a_ring_over_nodes() -> None:
    asked = question(gpus=64, seq_len=16384)
    inside = kind(asked, "sp", dp=8, sp=8)
    across = kind(asked, "sp", dp=8, sp=8, mesh_order=["pp", "sp", "dp", "tp"])
    assert across > inside
