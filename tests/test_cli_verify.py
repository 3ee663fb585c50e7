"""`verify` and `suggest --verify` as a user types them, and the one line that each bad input gets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from seqplan.__main__ import main
from seqplan.planner import verification
from seqplan.planner.results import MEMORY_KINDS
from tests.command_line import TINY, Seqplan, refusal, runner


@pytest.fixture
def seqplan(capsys: pytest.CaptureFixture[str]) -> Seqplan:
    return runner(capsys)


@pytest.fixture(scope="module")
def written_plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of two stages that differ, on two sp ranks each."""
    path = tmp_path_factory.mktemp("plan") / "plan.yaml"
    pins = ("--pp", "2", "--sp", "2", "--zero-stage", "0", "--attention", "ring")
    assert main(["suggest", *TINY, *pins, "-o", str(path)]) == 0
    return path.read_text()


@pytest.fixture
def plan_file(written_plan: str, tmp_path: Path) -> Path:
    """The plan, in a file of each test's own."""
    path = tmp_path / "plan.yaml"
    path.write_text(written_plan)
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


COMMANDS: tuple[tuple[str, ...], ...] = (("verify",), ("run", "--steps", "1", "--data", __file__))
"""Both read a plan, and refuse the same ones in the same words before torch is loaded."""


@pytest.mark.parametrize("command", COMMANDS, ids=("verify", "run"))
@pytest.mark.parametrize(
    ("place", "value", "text"),
    [
        ("layout.tp", 3, "tp"),
        ("layout.sp", 4, "dp=1 x pp=2 x tp=1 x sp=4 needs 8 GPUs, not 4"),
        ("layout.stage_layers", [1, 2], "stage_layers"),
        ("layout.zero_stage", 1, "seqplan has no zero_stage=1; use 0, 2 or 3."),
        ("layout.schedul", "1f1b", "layout.schedul"),
        ("schema", "seqplan/2", "written by a newer seqplan (schema seqplan/2; this one reads seqplan/1)."),
        ("schema", "seqplan/0", "schema is 'seqplan/0', not seqplan/1. Make the plan again: suggest -o."),
        ("schema", None, "not a plan. A plan begins with schema: seqplan/1."),
        ("model.position", "alibi", "seqplan cannot train tiny: it does not have "),
        ("model.sliding_window", 64, "seqplan cannot train tiny: it does not have "),
        ("train.seq_len", "long", "train.seq_len"),
    ],
)
def test_a_bad_plan_is_one_line(
    seqplan: Seqplan, plan_file: Path, command: tuple[str, ...], place: str, value: Any, text: str
) -> None:
    assert text in refusal(seqplan(*command, str(edited(plan_file, place, value))))


@pytest.mark.parametrize("command", COMMANDS, ids=("verify", "run"))
@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda text: text[: len(text) // 2], "plan.yaml"),
        (lambda text: text.replace("layout:", "layout: [", 1), "plan.yaml"),
        (lambda text: "- 1\n- 2\n", "plan.yaml"),
        (lambda text: "", "plan.yaml"),
        (lambda text: text.replace("gpus: 4", "gpus: !!python/object:os.system 4", 1), "plan.yaml"),
    ],
)
def test_a_damaged_file_is_one_line(
    seqplan: Seqplan, plan_file: Path, command: tuple[str, ...], damage: Callable[[str], str], text: str
) -> None:
    plan_file.write_text(damage(plan_file.read_text()))
    assert text in refusal(seqplan(*command, str(plan_file)))


@pytest.mark.parametrize("command", COMMANDS, ids=("verify", "run"))
def test_a_missing_file_is_one_line(seqplan: Seqplan, tmp_path: Path, command: tuple[str, ...]) -> None:
    missing = tmp_path / "no-plan.yaml"
    assert refusal(seqplan(*command, str(missing))) == f"seqplan: {missing}: no such file."


def test_only_our_trainer_is_simulated(seqplan: Seqplan, plan_file: Path) -> None:
    done = seqplan("verify", str(edited(plan_file, "implementation", "nanotron")))
    assert "only seqplan's own trainer can be simulated." in refusal(done)


def test_a_plan_of_another_trainer_is_refused(seqplan: Seqplan) -> None:
    done = seqplan("suggest", *TINY, "--implementation", "nanotron", "--verify")
    assert refusal(done) == (
        "seqplan: the layout is for nanotron; only seqplan's own trainer can be simulated. "
        "Plan with --implementation seqplan."
    )
