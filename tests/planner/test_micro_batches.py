"""Micro-batch sizes: a few first and those between them where they may lead, against every divisor."""

from __future__ import annotations

from typing import Any

import pytest

from seqplan import profiles
from seqplan.planner import layout_space
from seqplan.planner.choosing.layout_table import from_layout
from seqplan.planner.choosing.scan import scan
from seqplan.planner.layout import Layout
from seqplan.planner.layout_space import micro_batch_sizes, trainer_choices
from seqplan.planner.question import Pins, Question
from seqplan.planner.reading.integers import divisors
from seqplan.planner.time_model import time_table
from seqplan.planner.train_spec import TrainSpec

TOP = 5

CASES: list[tuple[str, str, int, int, int, str]] = [
    ("gpt2-large", "dgx-h100", 8, 1024, 480, "seqplan"),
    ("bert-base", "dgx-h100", 1, 128, 720, "seqplan"),
    ("bert-base", "dgx-h100", 8, 128, 7560, "seqplan"),
    ("tiny", "dgx-h100", 1, 512, 945, "seqplan"),
    ("llama3.2-1b", "dgx-h100", 8, 512, 7560, "seqplan"),
    ("bert-large", "dgx-a100", 4, 128, 2880, "megatron-core"),
    ("gpt2", "dgx-h100", 8, 1024, 2520, "seqplan"),
    ("llama3-8b", "dgx-h100", 8, 2048, 720, "seqplan"),
    ("gpt2-large", "dgx-a100-40", 16, 1024, 1680, "nanotron"),
    ("bert-large", "piz-daint", 12, 512, 2160, "megatron-2021"),
    ("llama2-13b", "dgx-a100-40", 24, 1024, 1440, "torchtitan"),
    ("llama3-8b", "dgx-h100", 16, 4096, 2048 * 3, "nemo"),
]
"""Batches of many divisors, also odd ones, on devices that hold few and many sequences at once."""


def asked(model: str, where: str, gpus: int, seq_len: int, batch: int, trainer: str) -> Question:
    return Question(
        model=profiles.load_model(model)[0],
        cluster=profiles.load_cluster(where).for_gpus(gpus),
        gpus=gpus,
        train=TrainSpec(seq_len=seq_len, global_batch_size=batch),
        implementation=profiles.load_implementation(trainer),
    )


def leaders_s(question: Question, **pinned: Any) -> list[float]:
    found = scan(question, Pins(**pinned), trainer_choices(question), TOP).best
    return [searched_s(question, layout) for layout in found]


def searched_s(question: Question, layout: Layout) -> float:
    return float(time_table(question, from_layout(layout, question.train)).step_time_s[0])


@pytest.mark.parametrize("case", CASES, ids=[" ".join(map(str, case[:5])) for case in CASES])
def test_the_leaders_are_those_of_every_divisor(
    case: tuple[str, str, int, int, int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    question = asked(*case)
    batch = question.train.global_batch_size
    ours = leaders_s(question)
    assert len(micro_batch_sizes(batch, 1, Pins())) < len(divisors(batch))
    monkeypatch.setattr(layout_space, "FEW_DIVISORS", len(divisors(batch)))
    assert micro_batch_sizes(batch, 1, Pins()) == divisors(batch)
    assert ours == pytest.approx(leaders_s(question), rel=1e-5)


@pytest.mark.parametrize("place", [1, 3])
def test_they_are_those_of_every_divisor_pinned(place: int) -> None:
    question = asked(*CASES[place])
    sizes = divisors(question.train.global_batch_size)
    every = sorted(seconds for size in sizes for seconds in leaders_s(question, micro_batch_size=size))
    assert leaders_s(question) == pytest.approx(every[:TOP], rel=1e-5)
