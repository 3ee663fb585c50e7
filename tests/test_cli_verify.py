"""`verify` and `suggest --verify` as a user types them, and the one line that each bad input gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from seqplan.planner import verification
from seqplan.planner.results import MEMORY_KINDS
from tests.command_line import TINY, Seqplan, refusal, runner


@pytest.fixture
def seqplan(capsys: pytest.CaptureFixture[str]) -> Seqplan:
    return runner(capsys)


@pytest.fixture
def plan_file(seqplan: Seqplan, tmp_path: Path) -> Path:
    """Of two stages that differ, on two sp ranks each."""
    path = tmp_path / "plan.yaml"
    pins = ("--pp", "2", "--sp", "2", "--zero-stage", "0", "--attention", "ring")
    done = seqplan("suggest", *TINY, *pins, "-o", str(path))
    assert done.status == 0, done.err
    return path


def edited(path: Path, place: str, value: Any) -> Path:
    """The plan with one value changed by hand, a dotted path to it."""
    plan = yaml.safe_load(path.read_text())
    *parents, last = place.split(".")
    at = plan
    for name in parents:
        at = at[name]
    at[last] = value
    path.write_text(yaml.safe_dump(plan, sort_keys=False))
    return path


def test_verify_json_is_the_contract(seqplan: Seqplan, plan_file: Path) -> None:
    done = seqplan("verify", str(plan_file), "--json")
    answer = json.loads(done.out)
    assert done.status == 0, done.err
    assert answer["schema"] == "seqplan-json/1"
    assert [stage["stage"] for stage in answer["stages"]] == [0, 1]
    for stage in answer["stages"]:
        for side in (stage["estimate"], stage["simulated"]):
            assert set(side["by_kind"]) == set(MEMORY_KINDS)
            assert sum(side["by_kind"].values()) == pytest.approx(side["allocated_bytes"])
        ratio = stage["estimate"]["allocated_bytes"] / stage["simulated"]["allocated_bytes"]
        assert stage["relative_difference"] == pytest.approx(ratio - 1.0)
    worst = max((stage["relative_difference"] for stage in answer["stages"]), key=abs)
    assert answer["worst_relative_difference"] == worst
    assert abs(worst) <= 0.03


def test_verify_prints_every_stage(seqplan: Seqplan, plan_file: Path) -> None:
    done = seqplan("verify", str(plan_file))
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    assert any("within the limit of 3.0 %" in line for line in lines), done.out
    for stage in ("Stage 0, the fullest rank", "Stage 1, the fullest rank"):
        assert stage in lines
    for name in ("weights", "activations", "allocated"):
        assert sum(line.startswith(name) for line in lines) == 2


def test_a_wrong_estimate_is_a_warning_and_status_1(
    seqplan: Seqplan, plan_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "DIFFERENCE_LIMIT", 0.0)
    done = seqplan("verify", str(plan_file))
    assert done.status == 1
    assert "warning: stage 0: the estimate is " in done.err
    assert "please report it" in done.err


def test_suggest_verifies_its_pick(seqplan: Seqplan) -> None:
    done = seqplan("suggest", *TINY, "--verify", "--json")
    answer = json.loads(done.out)
    assert done.status == 0, done.err
    assert abs(answer["verification"]["worst_relative_difference"]) <= 0.03
    assert len(answer["verification"]["stages"]) == answer["pick"]["layout"]["pp"]
    assert "The pick, simulated" in seqplan("suggest", *TINY, "--verify").out


@pytest.mark.parametrize(
    ("place", "value", "text"),
    [
        ("layout.tp", 3, "tp"),
        ("layout.zero_stage", 1, "seqplan has no zero_stage=1; use 0, 2 or 3."),
        ("schema", "seqplan/2", "written by a newer seqplan (schema seqplan/2; this one reads seqplan/1)."),
        ("model.position", "alibi", "seqplan cannot train tiny: it does not have "),
        ("implementation", "nanotron", "only seqplan's own trainer can be simulated."),
    ],
)
def test_a_bad_plan_is_one_line(seqplan: Seqplan, plan_file: Path, place: str, value: Any, text: str) -> None:
    assert text in refusal(seqplan("verify", str(edited(plan_file, place, value))))


def test_a_plan_of_another_trainer_is_refused(seqplan: Seqplan) -> None:
    done = seqplan("suggest", *TINY, "--implementation", "nanotron", "--verify")
    assert refusal(done) == (
        "seqplan: the layout is for nanotron; only seqplan's own trainer can be simulated. "
        "Plan with --implementation seqplan."
    )
