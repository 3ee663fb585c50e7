"""What a plan file says of memory and time beside what this version computes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from seqplan.planner.errors import SeqplanError
from seqplan.planner.plan import load_plan, plan_warnings, require_fit
from tests.planner.formula_cases import our_trainer
from tests.planner.test_plan import ABSENT, load_ours, made, write

CHANGED: list[tuple[dict[str, Any], str]] = [
    ({"memory": {"peak_bytes": float("nan")}}, "the plan's peak memory is nan and seqplan"),
    ({"time": {"step_time_s": float("inf")}}, "the plan's step time is inf and seqplan"),
    ({"memory": {"peak_bytes": 2.0**31}}, "the plan's peak memory is 2 GiB and seqplan"),
    ({"time": {"step_time_s": 9.5}}, "the plan's step time is 9.5 s and seqplan"),
    ({"memory": {"allocated_bytes": 1.0}}, "the plan's memory.allocated_bytes is 1 and seqplan"),
    ({"memory": {"limit_bytes": 2.0}}, "the plan's memory.limit_bytes is 2 and seqplan"),
    ({"memory": {"worst_stage": 0}}, "the plan's memory.worst_stage is 0 and seqplan"),
    ({"memory": {"worst_stage": 7}}, "the plan's memory.worst_stage is 7 and seqplan"),
    ({"time": {"by_kind": {"compute": 3.0}}}, "the plan's time.by_kind.compute is 3 and seqplan"),
    ({"time": {"by_kind": {"coffee": 3.0}}}, "the plan's time.by_kind.coffee is 3 and seqplan"),
    ({"time": {"by_kind": {"tp": ABSENT}}}, "the plan's time.by_kind.tp is not there and seqplan"),
    ({"time": {"bubble_fraction": 0.5}}, "the plan's time.bubble_fraction is 0.5 and seqplan"),
]


@pytest.mark.parametrize(("change", "says"), CHANGED, ids=[says for _, says in CHANGED])
def test_every_number_of_the_estimate_is_compared(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    """The plan's worst stage is the last of its two, which has the head and its logits."""
    (found,) = plan_warnings(load_plan(write(tmp_path, {"estimate": change}), load_ours), our_trainer())
    assert found.startswith(says)


def test_differences_are_relative_and_counted() -> None:
    plan = made()
    memory = plan.estimate.memory
    for factor, number in ((1 + 1e-7, 0), (1 + 1e-5, 4)):
        stages = tuple(
            each.model_copy(update={"by_kind": {kind: size * factor for kind, size in each.by_kind.items()}})
            for each in memory.stages
        )
        estimate = plan.estimate.model_copy(update={"memory": memory.model_copy(update={"stages": stages})})
        found = plan_warnings(plan.model_copy(update={"estimate": estimate}), our_trainer())
        assert len(found) == number
    assert re.fullmatch(r"[0-9]+ more numbers of the plan's estimate differ\.", found[-1])
    assert found[0].startswith("the plan's memory.stages[0].by_kind.weights is ")


def test_a_plan_that_does_not_fit_its_device_is_not_run() -> None:
    plan = made()
    require_fit(plan, our_trainer())
    train = plan.train.model_copy(update={"global_batch_size": 4096})
    layout_ = plan.layout.model_copy(update={"micro_batch_size": 1024})
    with pytest.raises(SeqplanError) as caught:
        require_fit(plan.model_copy(update={"train": train, "layout": layout_}), our_trainer())
    device = plan.cluster.device.name
    assert re.match(rf"this plan does not fit {device}: stage \d needs [\d.]+ GiB of ", caught.value.message)
    assert "GiB too much" in caught.value.message
    assert caught.value.hint == "Make a new plan: seqplan suggest -o."
