"""A plan of another trainer, or one that was edited: our estimate in its place, or a refusal by our rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqplan import profiles
from seqplan.planner.adopted_plan import adopted, up_to_date
from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout_defaults import complete_layout
from seqplan.planner.plan import Plan, load_plan, make_plan, plan_warnings, save_plan
from seqplan.planner.question import Question
from seqplan.planner.search import score
from seqplan.planner.train_spec import TrainSpec

OURS = profiles.load_implementation("seqplan")


def plan_for(trainer: str, **layout: object) -> Plan:
    question = Question(
        model=profiles.load_model("llama3-8b")[0],
        cluster=profiles.load_cluster("dgx-h100").for_gpus(8),
        gpus=8,
        train=TrainSpec(seq_len=8192, global_batch_size=16, precision="bf16"),
        implementation=profiles.load_implementation(trainer),
    )
    return make_plan(question, score(question, complete_layout(question, layout)))


def test_the_estimate_is_ours_and_the_layout_stays(tmp_path: Path) -> None:
    plan = plan_for("torchtitan", dp=2, tp=4, zero_stage=3, micro_batch_size=1, tp_sequence_parallel=True)
    mine, said = adopted(plan, OURS)
    assert said == ("planned for torchtitan; this runtime is seqplan: the estimate below is re-made for it.")
    assert mine.layout == plan.layout
    assert mine.implementation == "seqplan"
    ours = score(plan.question(OURS), plan.layout)
    assert mine.estimate.memory == ours.memory
    assert ours.time is not None
    assert mine.estimate.time.by_kind == ours.time.by_kind
    assert mine.estimate.time.notes[: len(ours.time.notes)] == ours.time.notes  # then the placement
    assert mine.estimate.memory.allocated_bytes != plan.estimate.memory.allocated_bytes
    save_plan(mine, tmp_path / "plan.yaml")
    assert plan_warnings(load_plan(tmp_path / "plan.yaml", profiles.load_implementation), OURS) == ()


def test_what_we_cannot_run_is_refused_with_every_reason() -> None:
    plan = plan_for("megatron-core", dp=8, zero_stage=1, recompute="selective", micro_batch_size=1)
    with pytest.raises(SeqplanError) as caught:
        adopted(plan, OURS)
    assert caught.value.message.startswith("planned for megatron-core, and this runtime is seqplan: ")
    assert "seqplan has no recompute=selective; use none or full." in caught.value.message
    assert "seqplan has no zero_stage=1" in caught.value.message
    assert "--implementation seqplan" in caught.value.hint


def test_an_edited_plan_is_run_beside_an_estimate_of_what_it_says_now() -> None:
    plan = plan_for("seqplan", dp=8, zero_stage=3, micro_batch_size=1)
    assert up_to_date(plan, OURS) == (plan, ())
    edited = plan.model_copy(update={"layout": plan.layout.model_copy(update={"recompute": "full"})})
    now, said = up_to_date(edited, OURS)
    scored = score(edited.question(OURS), edited.layout)
    assert now.layout == edited.layout
    assert now.estimate.memory == scored.memory
    assert scored.time is not None
    assert now.estimate.time.by_kind == scored.time.by_kind
    assert now.estimate.memory.peak_bytes < plan.estimate.memory.peak_bytes
    assert said[0].startswith("the plan's peak memory is ")
    assert said[-1] == "the planned figures of this run are estimated again."
    assert now.provenance == plan.provenance
