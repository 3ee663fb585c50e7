"""From one step to a whole job; and what less memory or fewer GPUs cost in time."""

from __future__ import annotations

import itertools

import pytest

from seqplan.planner.choosing.job import parse_tokens, training_job
from seqplan.planner.choosing.pareto import pareto
from seqplan.planner.errors import SeqplanError
from seqplan.planner.question import Pins
from seqplan.planner.search import score, suggest
from tests.planner.formula_cases import our_trainer
from tests.planner.samples import cluster, decoder, question


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("15T", 15 * 10**12),
        ("300B", 300 * 10**9),
        ("2.5e9", 2_500_000_000),
        ("1000", 1000),
        ("1.5 m", 1_500_000),
    ],
)
def test_tokens_are_read_as_they_are_written(text: str, tokens: int) -> None:
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["", "many", "0", "-3B", "1e30", "15TB", "1,000"])
def test_what_is_no_count_of_tokens_is_refused(text: str) -> None:
    with pytest.raises(SeqplanError, match="is not a number of tokens") as caught:
        parse_tokens(text)
    assert "15T" in caught.value.hint


def test_days_and_gpu_hours_by_hand() -> None:
    """64 x 4096 tokens a step of 2 s: 1e9 tokens are 3,814.7, so 3,815 steps; 7,630 s on 16 GPUs."""
    asked = question(decoder(), 16, seq_len=4096, global_batch_size=64)
    job = training_job(asked, 2.0, 10**9)
    assert job.steps == 3815
    assert job.days == pytest.approx(7630 / 86400)
    assert job.gpu_hours == pytest.approx(7630 / 3600 * 16)


def test_no_point_beats_another_and_each_is_the_fastest_under_its_limit() -> None:
    asked = question(
        decoder(num_layers=16, vocab_size=32000),
        16,
        where=cluster(memory_gib=40),
        implementation=our_trainer(),
    )
    points = pareto(asked, Pins())
    assert len(points) >= 3
    assert {point.gpus for point in points} > {16}
    for one, other in itertools.permutations(points, 2):
        assert (
            one.step_time_s < other.step_time_s or one.peak_bytes < other.peak_bytes or one.gpus < other.gpus
        )
    pick = suggest(asked, top=1).pick
    assert pick is not None
    assert pick.time is not None
    # The pick itself, or one as fast (to the six digits that count) with less memory.
    assert points[0].step_time_s == pytest.approx(pick.time.step_time_s, rel=1e-5)
    for point in points:
        scored = score(asked.model_copy(update={"gpus": point.gpus}), point.layout)
        assert scored.fits
        assert scored.time is not None
        assert point.step_time_s == scored.time.step_time_s
        assert point.gpu_hours_a_step == pytest.approx(point.step_time_s * point.gpus / 3600)
