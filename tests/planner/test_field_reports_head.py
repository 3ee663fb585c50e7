"""What people ran into in public with logits, and what must move an estimate; asked of ours.

Every test names the thread (repository#number) that it comes from. Each asserts what a planner should have
answered.
"""

from __future__ import annotations

from typing import Any

import pytest

from seqplan import profiles
from seqplan.planner.results import MemoryEstimate
from seqplan.planner.search import score
from tests.planner.memory_reports import ask, estimate, worst
from tests.planner.samples import layout

# The head


def test_logits_of_32k_tokens() -> None:
    """Automodel#3907: 32768 x 128256 x 4 B = 16.8 GB on a line of its own."""
    in_fp32 = ask("llama3.2-1b", "dgx-h100", 1, seq_len=32768, batch=1, precision="fp32")
    logits = worst(estimate(in_fp32)[1])["logits"]
    assert logits == pytest.approx(32768 * 128256 * 4, rel=0.01)
    # Half in bf16; a trainer that makes fp32 logits of them has at least the 16.8 GB again.
    in_bf16 = ask("llama3.2-1b", "dgx-h100", 1, seq_len=32768, batch=1)
    assert worst(estimate(in_bf16)[1])["logits"] == pytest.approx(8.4e9, rel=0.02)
    upcast = ask("llama3.2-1b", "dgx-h100", 1, "nanotron", seq_len=32768, batch=1)
    assert worst(estimate(upcast)[1])["logits"] >= 16.8e9


@pytest.mark.parametrize("trainer", ["seqplan", "nanotron", "megatron-core", "torchtitan"])
def test_a_head_that_never_makes_its_logits_whole(trainer: str) -> None:
    """LongVA#19: 43 GB became 8; an assumption that a flag makes, and that no trainer here fulfils."""
    whole = ask("llama3.2-1b", "dgx-h100", 1, trainer, seq_len=32768, batch=1)
    chunked = whole.model_copy(update={"train": whole.train.model_copy(update={"chunked_head": True})})
    before, after = (estimate(asked)[1] for asked in (whole, chunked))
    assert before.allocated_bytes - after.allocated_bytes > 0.9 * 32768 * 128256 * 2 - held_back(
        before, after
    )
    assert worst(after)["logits"] <= 2 * 2**26
    scored = score(chunked, layout(chunked))
    assert not scored.runnable
    assert any("--chunked-head assumes away" in reason.message for reason in scored.reasons)


def held_back(before: MemoryEstimate, after: MemoryEstimate) -> float:
    """What else is there at the moment that is the fullest without the logits."""
    return sum(
        max(size - worst(before)[kind], 0.0) for kind, size in worst(after).items() if kind != "logits"
    )


# What moves the estimate


def test_the_estimate_moves_with_length_batch_ring_and_recompute() -> None:
    """ROCm Megatron-LM#161: a flat 82 GiB of head-room was replaced by a formula."""

    def peak(seq_len: int, **fields: Any) -> float:
        asked = ask("llama3-8b", "dgx-h100", 8, seq_len=seq_len, batch=8)
        return estimate(asked, zero_stage=3, **fields)[1].peak_bytes

    at_4k = peak(4096, dp=8)
    assert peak(131072, dp=8) > 10 * at_4k
    assert peak(4096, dp=4, tp=2) != at_4k
    assert peak(4096, dp=1, sp=8, micro_batch_size=8) > 1.5 * peak(4096, dp=1, sp=8)
    assert peak(131072, sp=8) < peak(131072, dp=4, sp=2) < peak(131072, dp=8)
    assert peak(131072, dp=8, recompute="full") < 0.5 * peak(131072, dp=8)


def test_chunked_head_is_no_secret_capability() -> None:
    """The flag is an assumption about a trainer: none of the built-in ones claims it without a test."""
    trainers = [
        profiles.load_implementation(name)
        for name in ("seqplan", "megatron-2021", "megatron-core", "nanotron")
    ]
    assert not any(trainer.capabilities.chunked_head for trainer in trainers)
