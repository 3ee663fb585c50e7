"""`run` of a plan made for another trainer: one line of warning, or a refusal before any rank starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqplan.planner.plan import Plan
from seqplan.runtime import launch
from tests.command_line import TINY, Seqplan, refusal, runner


@pytest.fixture
def seqplan(capsys: pytest.CaptureFixture[str]) -> Seqplan:
    return runner(capsys)


def test_the_estimate_that_the_runtime_gets_is_re_made(
    seqplan: Seqplan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Plan] = []

    def launched(plan: Plan, *_: object) -> launch.RunResult:
        started.append(plan)
        return launch.RunResult(0)

    monkeypatch.setattr(launch, "launch", launched)
    plan = tmp_path / "plan.yaml"
    run = ["run", str(plan), "--data", "x", "--steps", "1"]
    assert seqplan("suggest", *TINY, "--implementation", "torchtitan", "-o", str(plan)).status == 0
    done = seqplan(*run)
    assert (done.status, done.out) == (0, "")
    assert done.err == (
        "warning: planned for torchtitan; this runtime is seqplan: the estimate below is re-made for it.\n"
    )
    assert started[0].implementation == "seqplan"
    assert seqplan("suggest", *TINY, "-o", str(plan)).status == 0
    assert seqplan(*run).err == "", "our own plan needs no words"


def test_what_only_the_other_can_do_is_refused(seqplan: Seqplan, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    pins = ["--implementation", "torchtitan", "--recompute", "selective"]
    assert seqplan("suggest", *TINY, *pins, "-o", str(plan)).status == 0
    line = refusal(seqplan("run", str(plan), "--data", "x", "--steps", "1"))
    assert "planned for torchtitan, and this runtime is seqplan: " in line
    assert "seqplan has no recompute=selective; use none or full." in line
