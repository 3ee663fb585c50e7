"""Bad input: one line that says what is wrong and what to set; exit 2; an object under --json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from seqplan.runtime.train import _check_finite
from seqplan.runtime.trainer import StepResult
from tests.command_line import TINY, Seqplan, refusal, replaced, runner


@pytest.fixture
def seqplan(capsys: pytest.CaptureFixture[str]) -> Seqplan:
    return runner(capsys)


BAD = [
    (["suggest"], "Missing argument 'MODEL'"),
    (["sugest"], "No such command 'sugest'"),
    (["suggest", "tiny"], "missing --cluster, --seq-len, --global-batch-size."),
    (["suggest", *TINY, "--gpu", "3"], "No such option"),
    (["suggest", *TINY, "--tp", "many"], "'--tp'"),
    (
        ["suggest", *TINY, "--tp", "0", "--sp", "-1"],
        "--tp 0: should be greater than or equal to 1; --sp -1: ",
    ),
    (["suggest", *TINY, "--zero-stage", "4"], "--zero-stage 4: should be less than or equal to 3"),
    (["suggest", *TINY, "--attention", "rng"], "'rng' is not one of 'none', 'ring', 'rsa'"),
    (["suggest", *TINY, "--stage-layers", "8,x"], "--stage-layers 8,x is not a list of whole numbers"),
    (["suggest", *replaced(TINY, "--seq-len", "0")], "--seq-len 0 must be at least 1"),
    (
        ["suggest", *replaced(TINY, "--seq-len", "1e6")],
        "--seq-len 1e6 is not a whole number from 1; write 1000000.",
    ),
    (["suggest", *replaced(TINY, "--seq-len", "-5")], "--seq-len -5 is not a whole number from 1"),
    (["suggest", *replaced(TINY, "--seq-len", "long")], "--seq-len long is not a whole number from 1"),
    (["suggest", *replaced(TINY, "--seq-len", "9" * 30)], "at most 2^40"),
    (["suggest", *replaced(TINY, "--global-batch-size", "0")], "--global-batch-size 0 must be at least 1"),
    (["suggest", *TINY, "--gpus", "0"], "--gpus 0: should be greater than or equal to 1"),
    (["suggest", *TINY, "--headroom", "1.5"], "--headroom 1.5: should be less than 1"),
    (["suggest", *TINY, "--gpus", "3", "--nodes", "2"], "Give one of the two."),
    (["suggest", *TINY, "--implementation", "megatrom"], "megatrom"),
    (["suggest", *replaced(TINY, "--cluster", "bert-large")], "--cluster bert-large is a model"),
    (["suggest", *["dgx-h100", *TINY[1:]]], "MODEL dgx-h100 is a cluster"),
    (["suggest", *["no-such-model", *TINY[1:]]], "no-such-model"),
    (["suggest", *replaced(TINY, "--cluster", "no-such-cluster")], "no-such-cluster"),
    (["suggest", *TINY, "-o", "no/such/folder/plan.yaml"], "no/such/folder"),
    (["explain", "tiny"], "tiny is a model; to explain one of its layouts, say which. Add --layout dp2,"),
    (["explain", *TINY], "Add --layout dp2,pp1,tp4,sp8, with --cluster, --seq-len and --global-batch-size"),
    (
        ["explain", "tine"],
        "tine: no such plan file, nor a built-in model. Give a plan file, from suggest -o;",
    ),
    (["run", "plan.yaml", "--data", "x", "--steps", "1", "--lr", "inf"], "should be a finite number"),
    (["run", "plan.yaml", "--data", "x", "--steps", "1", "--timeout", "nan"], "should be "),
    (["explain", *TINY, "--layout", "dp2,tp"], "dp2,tp"),
    (["explain", *TINY, "--layout", "dp2,tp2", "--tp", "4"], "--layout says tp=2 and --tp says 4"),
    (["models", "no-such-model"], "no-such-model"),
    (["clusters", "no-such-cluster"], "no-such-cluster"),
    (["score", "no-such-file.jsonl"], "no-such-file.jsonl"),
    (["run", "no-such-plan.yaml", "--data", "x", "--steps", "1"], "no-such-plan.yaml"),
    (["run", "plan.yaml", "--data", "x", "--steps", "0", "--lr", "-1"], "--steps 0: "),
]


@pytest.mark.parametrize(("arguments", "said"), BAD, ids=[" ".join(bad[0])[:70] for bad in BAD])
def test_bad_input_is_one_line(seqplan: Seqplan, arguments: list[str], said: str) -> None:
    assert said in refusal(seqplan(*arguments))


@pytest.mark.parametrize("arguments", [["suggest", *TINY, "--gpu", "3"], ["suggest", "nil", *TINY[1:]]])
def test_errors_as_json(seqplan: Seqplan, arguments: list[str]) -> None:
    done = seqplan(*arguments, "--json")
    answer = json.loads(done.out)
    assert done.status == 2
    assert done.err == ""
    assert answer["schema"] == "seqplan-json/1"
    assert set(answer["error"]) == {"message", "hint"}
    assert answer["error"]["message"]


def test_work_that_failed_is_one_line_with_exit_1(seqplan: Seqplan, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(typed: list[str]) -> int:
        _check_finite(7, StepResult(float("nan"), 1.0, 0.1, 5))
        return 0

    monkeypatch.setattr("seqplan.__main__._command", diverge)
    done = seqplan("run")
    assert done.status == 1
    assert done.err.startswith(
        "seqplan: The loss is nan and the gradient norm 1 at step 7 (learning rate 0.1)."
    )
    assert len(done.err.splitlines()) == 1


def test_a_plan_beyond_its_device_is_not_started(seqplan: Seqplan, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    assert seqplan("suggest", *TINY, "-o", str(plan)).status == 0
    data = yaml.safe_load(plan.read_text())
    data["train"]["headroom_fraction"] = 0.9999
    plan.write_text(yaml.safe_dump(data))
    text = tmp_path / "text.txt"
    text.write_text("some text to read. " * 500)
    done = seqplan(
        "run", str(plan), "--data", str(text), "--steps", "1", "--output-dir", str(tmp_path / "out")
    )
    assert done.status == 2
    line = done.err.splitlines()[-1]
    assert "this plan does not fit" in line
    assert "too much" in line
    assert line.endswith("Make a new plan: seqplan suggest -o.")
    assert not (tmp_path / "out").exists()


def test_swapped_files_are_seen(seqplan: Seqplan, tmp_path: Path) -> None:
    model = tmp_path / "config.json"
    model.write_text(
        json.dumps({"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 64})
    )
    sizes = ["--seq-len", "64", "--global-batch-size", "8"]
    line = refusal(seqplan("suggest", "local", "--cluster", str(model), *sizes))
    assert "MODEL and --cluster look swapped" in line
