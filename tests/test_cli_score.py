"""`score` as people feed it: layouts as text, flat keys, and what the exit status says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seqplan.planner.score_cases import EXAMPLE
from tests.command_line import Seqplan, runner


@pytest.fixture
def seqplan(capsys: pytest.CaptureFixture[str]) -> Seqplan:
    return runner(capsys)


def answers(seqplan: Seqplan, folder: Path, *lines: str) -> tuple[int, list[dict[str, Any]]]:
    cases = folder / "cases.jsonl"
    cases.write_text("\n".join(lines) + "\n")
    done = seqplan("score", str(cases))
    return done.status, [json.loads(line) for line in done.out.splitlines()]


def changed(**fields: Any) -> str:
    case: dict[str, Any] = {**json.loads(EXAMPLE), **fields}
    return json.dumps({key: value for key, value in case.items() if value is not None})


def test_a_layout_as_text_is_the_same_as_its_fields(seqplan: Seqplan, tmp_path: Path) -> None:
    fields = {"dp": 1, "pp": 1, "tp": 2, "sp": 4, "micro_batch_size": 1}
    short = "tp2 sp4"  # as explain takes it: an axis left out is 1, and so is the micro-batch
    status, found = answers(seqplan, tmp_path, EXAMPLE, changed(layout=fields), changed(layout=short))
    assert status == 0
    assert found[0]["legal"]
    assert found[0]["layout"]["sp"] == 4
    assert found[0] == found[1] == found[2]
    _, (wrong,) = answers(seqplan, tmp_path, changed(layout="tp2,cp4"))
    assert "cp (context parallelism) is called sp here" in wrong["error"]["message"]


def test_flat_keys_are_told_where_they_belong(seqplan: Seqplan, tmp_path: Path) -> None:
    flat = changed(train=None, seq_len=4096, global_batch_size=8)
    _, (answer,) = answers(seqplan, tmp_path, flat)
    assert "missing train; unknown key seq_len, global_batch_size" in answer["error"]["message"]
    assert '`train` is an object: "train": {"seq_len": 4096' in answer["error"]["hint"]
    _, (answer,) = answers(seqplan, tmp_path, changed(layout=None, tp=2))
    assert '"layout": "dp1,pp1,tp2,sp4,micro_batch_size=1"' in answer["error"]["hint"]
    assert "`train` is an object" not in answer["error"]["hint"]


def test_an_error_says_its_line(seqplan: Seqplan, tmp_path: Path) -> None:
    status, found = answers(seqplan, tmp_path, EXAMPLE, "", "{", changed(gpus=0))
    assert status == 0, "one case was answered"
    assert [answer.get("line") for answer in found] == [None, 3, 4]
    assert EXAMPLE in found[1]["error"]["hint"]


def test_exit_1_where_no_case_was_answered(seqplan: Seqplan, tmp_path: Path) -> None:
    assert answers(seqplan, tmp_path, "{", changed(model="nil"))[0] == 1
    assert answers(seqplan, tmp_path, "") == (0, [])
