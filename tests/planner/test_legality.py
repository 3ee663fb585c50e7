"""Each rule: what it lets pass, what it refuses, and that its text holds the numbers and what would work."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from seqplan.planner.choosing.layout_grid import candidate_tables
from seqplan.planner.choosing.layout_table import from_layout
from seqplan.planner.layout_space import trainer_choices
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.question import Pins
from seqplan.planner.rules.legality import RULES, reasons, sieve, verdict
from seqplan.planner.rules.rules_degrees import sequence_divisor
from tests.planner.broken_rules import BROKEN, Broken
from tests.planner.samples import decoder, encoder, layout, question, trainer

NOT_OURS: list[tuple[dict[str, Any], str, str]] = [
    ({"dp": 8, "zero_stage": 1}, "trainer_zero", "no zero_stage=1; use 0, 2 or 3"),
    ({"dp": 8, "recompute": "selective"}, "trainer_recompute", "no recompute=selective; use none or full"),
    ({"dp": 8, "precision": "fp16"}, "trainer_precision", "no precision=fp16; use fp32 or bf16"),
    ({"pp": 8, "schedule": "gpipe"}, "trainer_schedule", "no schedule=gpipe; use none or 1f1b"),
    ({"dp": 8, "zero_stage": 3, "zero_shard_size": 4}, "trainer_hybrid_sharding", "set 8 or leave it out"),
]


@pytest.mark.parametrize("case", BROKEN, ids=[case.what for case in BROKEN])
def test_a_broken_rule_is_named_with_what_would_work(case: Broken) -> None:
    found = verdict(case.question, layout(case.question, **case.layout))
    texts = {reason.rule: reason.message for reason in found.reasons}
    assert case.rule in texts
    for fragment in case.says:
        assert fragment in texts[case.rule]
    assert not found.legal
    assert not found.runnable


def test_every_rule_about_the_split_is_broken_by_some_case() -> None:
    assert {case.rule for case in BROKEN} == {rule.name for rule in RULES if rule.scope == "layout"}


@pytest.mark.parametrize(("fields", "rule", "says"), NOT_OURS)
def test_what_the_trainer_lacks_is_legal_but_not_runnable(
    fields: dict[str, Any], rule: str, says: str
) -> None:
    asked = question()
    found = verdict(asked, layout(asked, **fields))
    assert [reason.rule for reason in found.reasons] == [rule]
    assert says in found.reasons[0].message
    assert found.legal
    assert not found.runnable


def test_all_broken_rules_are_reported_at_once() -> None:
    asked = question(decoder(num_kv_heads=2), gpus=24, seq_len=1001, global_batch_size=7)
    found = reasons(asked, layout(asked, dp=2, tp=6, sp=4, zero_stage=1))
    assert [reason.rule for reason in found] == [
        "world_size",
        "tp_heads",
        "tp_kv_heads",
        "tp_ffn",
        "sequence",
        "batch",
        "trainer_zero",
    ]


def test_a_good_layout_breaks_nothing_on_any_world_size() -> None:
    for gpus, fields in (
        (6, {"dp": 3, "tp": 2}),
        (7, {"dp": 7}),
        (24, {"dp": 3, "pp": 2, "tp": 4}),
        (96, {"dp": 12, "tp": 8}),
        (13, {"dp": 13}),
        (8, {"pp": 2, "tp": 2, "sp": 2, "tp_sequence_parallel": True, "zero_stage": 2}),
        (8, {"sp": 8, "attention": "rsa"}),
    ):
        asked = question(gpus=gpus, global_batch_size=gpus * 4, seq_len=4096)
        assert reasons(asked, layout(asked, **fields)) == ()


def test_kv_heads_may_be_exceeded_where_the_trainer_copies_them() -> None:
    copying = question(decoder(num_kv_heads=2), gpus=16, implementation=trainer(tp_copies_kv_heads=True))
    assert reasons(copying, layout(copying, tp=16)) == ()
    six = question(decoder(num_kv_heads=4, num_attention_heads=48, hidden_size=6144), gpus=6)
    copying_six = six.model_copy(update={"implementation": trainer(tp_copies_kv_heads=True)})
    texts = [reason.message for reason in reasons(copying_six, layout(copying_six, tp=6))]
    assert texts[0].startswith("tp=6 neither divides nor is a multiple of num_kv_heads=4; use 1, 2, 4, 8, 12")


def test_few_micro_batches_are_the_trainers_matter() -> None:
    fields = {"dp": 1, "pp": 8, "micro_batch_size": 2}
    ours = question(gpus=8, global_batch_size=8)
    assert [r.rule for r in reasons(ours, layout(ours, **fields))] == ["microbatches"]
    others = ours.model_copy(update={"implementation": trainer(min_microbatches_per_stage=0)})
    assert reasons(others, layout(others, **fields)) == ()


def test_uneven_stages_are_the_trainers_matter() -> None:
    asked = question(decoder(num_layers=30), gpus=4, implementation=trainer(uneven_stages=False))
    (reason,) = reasons(asked, layout(asked, pp=4))
    assert reason.rule == "trainer_uneven_stages"
    assert "stage_layers=7+8+8+7" in reason.message
    assert "use pp 1 or 2" in reason.message


def test_the_divisor_of_a_sequence_stands_in_one_place() -> None:
    # NVIDIA-NeMo/RL 3563: lcm(2 CP, CP TP); CP = 3, TP = 4 gives 12.
    def divisor(model: ModelSpec, sp: int, tp: int, over_tp: bool) -> int:
        one = np.array([1], dtype=np.int64)
        return int(sequence_divisor(question(model), sp * one, tp * one, int(over_tp) * one)[0])

    assert divisor(decoder(), 3, 4, True) == 12
    assert divisor(decoder(), 3, 4, False) == 6
    assert divisor(encoder(), 3, 4, False) == 3
    assert divisor(encoder(), 3, 4, True) == 12
    assert divisor(decoder(), 1, 4, False) == 1
    assert divisor(decoder(), 1, 4, True) == 4
    assert divisor(decoder(), 4, 1, False) == 8


def test_one_row_and_many_rows_agree_on_every_rule() -> None:
    """The masks over a table are the verdicts of its rows: the search and `explain` cannot disagree."""
    asked = question(decoder(num_layers=6, num_kv_heads=4), gpus=12, seq_len=96, global_batch_size=24)
    checked = 0
    for table in candidate_tables(asked, Pins(), trainer_choices(asked)):
        sieved = sieve(asked, table)
        for row in range(0, len(table), 7):
            found = verdict(asked, table.row(row))
            assert found.runnable == bool(sieved.runnable[row])
            assert found.costable == bool(sieved.costable[row])
            fell = [rule.name for rule, rows in sieved.fell_to if rows[row]]
            assert fell == [reason.rule for reason in found.reasons][:1]
            checked += 1
    assert checked > 100


def test_every_row_of_a_mask_is_a_truth_value() -> None:
    asked = question()
    for rule, fields in itertools.product(RULES, ({"dp": 8}, {"pp": 2, "sp": 4}, {"tp": 3, "pp": 40})):
        table = from_layout(layout(asked, **fields), asked.train)
        mask = rule.mask(asked, table)
        assert mask.shape == (1,)
        assert bool(mask[0]) == rule.breaks(asked, table)
