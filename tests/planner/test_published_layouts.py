"""The choice against layouts that real jobs used: each fits, and the best of its kind is hardly faster.

The rows are profiles/published/launched-layouts.yaml (model, devices, options, each with its source). Recipes
that name no device are left out of the choice: their authors cannot have chosen for one.
"""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest

from seqplan import cli_inputs, profiles
from seqplan.planner.choosing.layout_table import from_layout
from seqplan.planner.choosing.scan import scan
from seqplan.planner.layout import Layout
from seqplan.planner.layout_space import trainer_choices
from seqplan.planner.measured.published_choice import Choice, choice, held_pins
from seqplan.planner.measured.published_comparison import ask_group
from seqplan.planner.question import Pins, Question
from seqplan.planner.time_model import time_table

NAMES_NO_DEVICE = (
    "llama3_70b, 1,024 GPUs",
    "llama2_70b, 1,024 GPUs",
    "175b, 1,024 GPUs",
    "5b, 128 GPUs",
    "175b_32k, 512 GPUs",
)

LLAMA3 = {"405B at 8,192 tokens, 16,384 GPUs": 0.90, "405B at 131,072 tokens, 16,384 GPUs": 0.95}
"""At least this share of the best speed (issue: within 10 and 5 % of the best)."""

WITHIN = 1 / 1.1
"""Within 10 % of the best time."""

SHARE_OF_JOBS = 0.8

EXCEPTIONS = {
    # tp=2 with twice the replicas is 13 % faster here. Measured steps agree: vTrain's GPT of 3.6B on 64 A100
    # takes 3.94 s at tp=2 and 4.49 s at tp=4 (rows 5 and 8 of its data): outside the matmuls every tp rank of
    # this trainer does all tokens, and the table that the layout is from took tp for memory, not for speed.
    "7.5B on 128": 0.85,
    # Two to four tp ranks and more stages are 11 % faster here, but not where it was tried: vTrain's rows of
    # this very model on 512 A100 take 14.6 s at tp=8, pp=2, 21.9 s at tp=2, pp=8 (ours: 13), and 13.9 to
    # 18.5 s at tp=4, pp=4 without order in the micro-batch. What slows them is not told, so it is not fitted.
    "39B on 512": 0.87,
}


@cache
def launched() -> dict[str, tuple[Question, Layout]]:
    source = profiles.load_published("launched-layouts")
    loaders = cli_inputs.loaders()
    asked = [row for group in source.groups for row in ask_group(source, group, loaders)]
    return {facts.row: (question, layout) for question, layout, facts in asked}


@cache
def judged(row: str) -> Choice:
    question, layout = launched()[row]
    pins = held_pins(layout)
    if row in LLAMA3:
        pins = pins.model_copy(update={"micro_batch_size": 1, "num_virtual_stages": None, "mesh_order": None})
    return choice(question, layout, pins)


def jobs() -> list[str]:
    return [row for row in launched() if row not in NAMES_NO_DEVICE and row not in LLAMA3]


@pytest.mark.parametrize("row", list(launched()))
def test_what_ran_is_legal_and_fits(row: str) -> None:
    found = judged(row)
    assert not found.reasons
    assert found.peak_bytes <= found.limit_bytes


@pytest.mark.parametrize("row", list(LLAMA3))
def test_llama_3_is_among_the_first_by_degrees(row: str) -> None:
    found = judged(row)
    assert found.rank <= 5
    assert found.share_of_best >= LLAMA3[row]
    assert len(found.others) > 50, "there was something to choose from"


@pytest.mark.parametrize("row", list(LLAMA3))
def test_nothing_of_their_own_trainer_beats_llama_3(row: str) -> None:
    """Everything free: micro-batch, recomputation, schedule, order of the mesh.

    What beats the layout needs another trainer: at 8,192 tokens Megatron-Core's ZB-V on 32 stages takes 5 %
    less, NeMo, whose tp runs beside its matmuls, 16 %; at 131,072 tokens NeMo's best takes 3 % less.
    """
    question, _ = launched()[row]
    found = judged(row)
    best = scan(question, Pins(), trainer_choices(question), top=1).best[0]
    seconds = time_table(question, from_layout(best, question.train)).step_time_s[0]
    assert seconds >= LLAMA3[row] * min(found.step_time_s, found.others[0][0])


def test_eight_of_ten_jobs_chose_within_a_tenth_of_the_best() -> None:
    near = {row: judged(row).share_of_best for row in jobs()}
    assert len(near) >= 13
    assert sum(share >= WITHIN for share in near.values()) >= SHARE_OF_JOBS * len(near), near
    far = {row: share for row, share in near.items() if share < WITHIN}
    assert all(share >= EXCEPTIONS[row] for row, share in far.items()), far


def test_a_worse_layout_is_told_apart() -> None:
    """What is compared is time, not the name: the same job with tp across nodes is far from the best."""
    question, layout = launched()["39B on 512"]
    worse = layout.model_copy(update={"tp": 64, "dp": 4})
    assert choice(question, worse, held_pins(layout)).share_of_best < 0.5


def test_what_is_held_is_held() -> None:
    question, layout = launched()["145B on 1,536"]
    found = choice(question, layout, held_pins(layout))
    for _, other in found.others:
        assert (other.recompute, other.zero_stage, other.schedule) == ("full", 0, "interleaved")
        assert other.num_virtual_stages == 2
    own = next(time for time, other in found.others if other.degrees == layout.degrees)
    assert own <= found.step_time_s, "the micro-batch is free"
    assert dataclasses.replace(found, step_time_s=found.others[0][0]).share_of_best == 1.0
