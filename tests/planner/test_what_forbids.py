"""Where nothing is legal: what every candidate breaks, and which trainers could."""

from __future__ import annotations

from typing import Any

import pytest

from seqplan.planner.choosing.layout_grid import candidate_tables
from seqplan.planner.choosing.what_forbids import broken_by_all, has_legal_layout
from seqplan.planner.layout_space import trainer_choices
from seqplan.planner.question import Pins, Question
from seqplan.planner.rules.legality import verdict
from seqplan.planner.search import suggest
from tests.planner.formula_cases import our_trainer
from tests.planner.samples import decoder, question


def ours(model: Any = None, gpus: int = 8, **changes: Any) -> Question:
    return question(model, gpus, implementation=our_trainer(), **changes)


@pytest.mark.parametrize(
    ("asked", "pins"),
    [
        (
            ours(decoder(parallel_block=True), 16),
            Pins(),
        ),  # 16 devices: some candidates break tp_kv_heads first
        (ours(gpus=16, precision="fp8"), Pins()),
        (ours(optimizer="adamw-8bit"), Pins()),
        (ours(decoder(parallel_block=True), precision="fp16"), Pins()),  # two at once
        (ours(decoder(num_kv_heads=4)), Pins(tp=8)),
        (ours(), Pins(pp=8, stage_layers=(4,) * 8, micro_batch_size=16)),
        (question(decoder(), 22, global_batch_size=8, implementation=our_trainer()), Pins()),
        (ours(), Pins()),
    ],
)
def test_it_is_what_a_walk_over_all_candidates_finds(asked: Question, pins: Pins) -> None:
    common: set[str] | None = None
    legal = False
    for table in candidate_tables(asked, pins, trainer_choices(asked)):
        for row in range(0, len(table), max(len(table) // 40, 1)):
            found = verdict(asked, table.row(row))
            names = {reason.rule for reason in found.reasons}
            common = names if common is None else common & names
            legal |= found.runnable
    reasons = broken_by_all(asked, pins)
    assert {reason.rule for reason in reasons} <= (common or set())
    assert has_legal_layout(asked, pins) >= legal
    answer = suggest(asked, pins)
    assert has_legal_layout(asked, pins) == (answer.legal > 0)
    if answer.legal:
        assert answer.broken_by_all == () == reasons
    else:
        assert answer.broken_by_all == reasons
        assert {reason.rule for reason in reasons} == common


def test_pins_that_cannot_be_have_no_legal_layout() -> None:
    assert not has_legal_layout(ours(), Pins(dp=3))
