"""The commands as a user types them: what they answer, in text, as JSON and as a plan file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from seqplan import __version__
from seqplan.planner.layout import Layout
from seqplan.planner.question import Pins
from tests.command_line import BERT, TINY, Seqplan, refusal, replaced, runner

MODELS = "bert-base bert-large gpt2 gpt3-175b llama2-7b llama3-8b llama3-70b llama3-405b tiny"
CLUSTERS = "piz-daint dgx-v100 dgx-a100 dgx-h100 dgx-h200 dgx-b200 local"
"""Names that scripts rely on."""


@pytest.fixture
def seqplan(capsys: pytest.CaptureFixture[str]) -> Seqplan:
    return runner(capsys)


def test_suggest_prints_the_pick_and_the_rest(seqplan: Seqplan) -> None:
    done = seqplan("suggest", *TINY)
    assert done.status == 0, done.err
    assert done.err == ""
    lines = done.out.splitlines()
    assert lines[0].startswith("tiny on 4 x ")
    for start in ("Pick: dp", "Best ", "Memory of stage ", "  why: "):
        assert any(line.startswith(start) for line in lines), f"no line begins with {start!r}"
    assert any("candidates" in line and "what fell" in line for line in lines)


def test_suggest_json_is_the_contract(seqplan: Seqplan) -> None:
    done = seqplan("suggest", *TINY, "--json", "--top", "3")
    answer = json.loads(done.out)
    assert done.status == 0
    assert answer["schema"] == "seqplan-json/1"
    assert answer["pick"] == answer["ranked"][0]
    assert len(answer["ranked"]) == 3
    steps = [scored["time"]["step_time_s"] for scored in answer["ranked"]]
    assert steps == sorted(steps)
    layout = answer["pick"]["layout"]
    assert layout["dp"] * layout["pp"] * layout["tp"] * layout["sp"] == 4
    assert answer["candidates"] >= answer["legal"] >= answer["fitting"] >= 3


PINS = [
    ("--dp", "2", "dp", 2),
    ("--pp", "2", "pp", 2),
    ("--tp", "2", "tp", 2),
    ("--sp", "2", "sp", 2),
    ("--micro-batch-size", "2", "micro_batch_size", 2),
    ("--recompute", "full", "recompute", "full"),
    ("--zero-stage", "2", "zero_stage", 2),
]


@pytest.mark.parametrize(("flag", "typed", "field", "value"), PINS, ids=[pin[0] for pin in PINS])
def test_a_pin_holds_for_every_layout(
    seqplan: Seqplan, flag: str, typed: str, field: str, value: object
) -> None:
    answer = json.loads(seqplan("suggest", *TINY, flag, typed, "--json").out)
    assert answer["ranked"]
    assert {scored["layout"][field] for scored in answer["ranked"]} == {value}


def test_every_field_of_the_layout_has_its_flag(seqplan: Seqplan) -> None:
    listed = seqplan("suggest", "--help").out
    assert set(Layout.model_fields) - {"precision"} == set(Pins.model_fields)
    for field in Layout.model_fields:
        assert f"--{field.replace('_', '-')} " in listed, f"no flag for {field}"
    assert "--no-tp-sequence-parallel" in listed


def test_list_pins_are_read(seqplan: Seqplan) -> None:
    typed = ["--pp", "2", "--stage-layers", "3,5", "--mesh-order", "pp,dp,tp,sp"]
    answer = json.loads(seqplan("suggest", *TINY, *typed, "--json").out)
    layouts = [scored["layout"] for scored in answer["ranked"]]
    assert layouts, answer["rejected"]
    assert all(layout["stage_layers"] == [3, 5] for layout in layouts)
    assert all(layout["mesh_order"] == ["pp", "dp", "tp", "sp"] for layout in layouts)


def test_nothing_fits_exits_1_and_says_what_would(seqplan: Seqplan, tmp_path: Path) -> None:
    typed = [
        "llama3-405b",
        "--cluster",
        "dgx-a100",
        "--gpus",
        "8",
        "--seq-len",
        "8k",
        "--global-batch-size",
        "8",
    ]
    plan = tmp_path / "plan.yaml"
    done = seqplan("suggest", *typed, "-o", str(plan))
    assert done.status == 1
    assert "Nothing fits: " in done.out
    assert "GiB too much; its largest part is " in done.out
    assert "What would make it fit" in done.out
    assert not plan.exists()
    assert done.err == f"not written, since nothing fits: {plan}\n"
    answer = json.loads(seqplan("suggest", *typed, "--json").out)
    assert answer["pick"] is None
    assert answer["would_fit"]
    assert f"--seq-len 8k is read as {8 * 1024}" in answer["notes"]


def test_headroom_lowers_the_limit(seqplan: Seqplan) -> None:
    limits = {}
    for headroom in ("0", "0.25"):
        answer = json.loads(seqplan("suggest", *BERT, "--headroom", headroom, "--json").out)
        limits[headroom] = answer["pick"]["memory"]["limit_bytes"]
    assert limits["0.25"] == pytest.approx(0.75 * limits["0"], rel=1e-12)


@pytest.mark.parametrize(("typed", "tokens"), [("4096", 4096), ("4k", 4096), ("4K", 4096), ("4_096", 4096)])
def test_sizes_as_people_write_them(seqplan: Seqplan, typed: str, tokens: int) -> None:
    arguments = replaced(replaced(TINY, "--seq-len", typed), "--global-batch-size", "4")
    done = seqplan("suggest", *arguments)
    assert done.status == 0, done.err
    assert f"4 sequences of {tokens:,} tokens a step" in done.out
    assert (f"--seq-len {typed} is read as 4096" in done.out) == typed.lower().endswith("k")


def test_a_batch_in_tokens_is_warned_of(seqplan: Seqplan) -> None:
    done = seqplan(
        "suggest", *replaced(replaced(TINY, "--seq-len", "4096"), "--global-batch-size", "4194304")
    )
    # 4,194,304 x 4,096 = 17.18e9 tokens; 4,194,304 tokens are 1,024 such sequences.
    assert "4,194,304 of 4,096 tokens are 17.2 G tokens a step" in " ".join(done.out.split())
    assert "set --global-batch-size 1024" in " ".join(done.out.split())


def test_plan_file_is_what_was_picked_and_explain_reads_it(seqplan: Seqplan, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    answer = json.loads(seqplan("suggest", *TINY, "--sp", "2", "-o", str(plan), "--json").out)
    assert yaml.safe_load(plan.read_text())["layout"] == answer["pick"]["layout"]
    assert [path.name for path in tmp_path.iterdir()] == ["plan.yaml"], "nothing else is left behind"
    explained = seqplan("explain", str(plan), "--json")
    assert explained.status == 0, explained.err
    scored = json.loads(explained.out)
    assert scored["layout"] == answer["pick"]["layout"]
    assert scored["memory"] == answer["pick"]["memory"]
    shown = seqplan("explain", str(plan))
    assert shown.status == 0
    assert "What a rank holds" in shown.out
    assert "--sp beside a plan file" in refusal(seqplan("explain", str(plan), "--sp", "2"))


def test_explain_a_legal_layout(seqplan: Seqplan) -> None:
    typed = ["--layout", "dp16,pp1,tp1,sp4", "--recompute", "full"]
    scored = json.loads(seqplan("explain", *BERT, *typed, "--json").out)
    assert scored["schema"] == "seqplan-json/1"
    assert scored["legal"]
    assert scored["layout"]["recompute"] == "full"
    memory = scored["memory"]
    for stage in memory["stages"]:
        assert sum(stage["by_kind"].values()) == pytest.approx(stage["allocated_bytes"], rel=1e-9)
        assert stage["allocated_bytes"] + stage["overhead_bytes"] == pytest.approx(
            stage["peak_bytes"], rel=1e-9
        )
    assert sum(scored["time"]["by_kind"].values()) == pytest.approx(scored["time"]["step_time_s"], rel=1e-9)


def test_a_typed_layout_says_how_many_devices(seqplan: Seqplan) -> None:
    sizes = ["--cluster", "dgx-h100", "--seq-len", "4096", "--global-batch-size", "64"]
    shown = seqplan("explain", "llama3-8b", "--layout", "dp4,tp8,sp2", *sizes)
    assert shown.status == 0
    # 4 x 8 x 2 devices, 8 a node.
    assert shown.out.splitlines()[0] == "llama3-8b on 64 x h100-sxm of dgx-h100 (8 nodes)"
    other = json.loads(
        seqplan("explain", "llama3-8b", "--layout", "dp4,tp8", *sizes, "--gpus", "8", "--json").out
    )
    assert not other["legal"]
    assert any("32" in reason["message"] and "8" in reason["message"] for reason in other["reasons"])
    # 21 devices are no whole nodes, and 3 divides no batch of 64, 7 no 32 heads: all of it is said.
    other = json.loads(seqplan("explain", "llama3-8b", "--layout", "dp3,tp7", *sizes, "--json").out)
    said = " ".join(reason["message"] for reason in other["reasons"])
    assert all(number in said for number in ("21", "dp=3", "tp=7"))


def test_explain_an_illegal_layout_gives_every_reason(seqplan: Seqplan) -> None:
    # BERT-Large has 16 heads and an MLP of 4096: 3 divides neither; and 16 x 3 = 48 devices are not 64.
    done = seqplan("explain", *BERT, "--layout", "dp16,pp1,tp3,sp1", "--json")
    scored = json.loads(done.out)
    assert done.status == 0
    assert not scored["legal"]
    assert len(scored["reasons"]) >= 2
    assert scored["memory"] is None
    shown = seqplan("explain", *BERT, "--layout", "dp16,pp1,tp3,sp1")
    assert shown.out.count("\n - ") >= 2


def test_score_answers_line_by_line(seqplan: Seqplan, tmp_path: Path) -> None:
    case: dict[str, Any] = {
        "id": "a",
        "model": "bert-large",
        "cluster": "piz-daint",
        "gpus": 4,
        "train": {"seq_len": 512, "global_batch_size": 64, "precision": "fp32"},
        "layout": {"dp": 1, "pp": 1, "tp": 1, "sp": 4, "micro_batch_size": 8, "attention": "rsa"},
        "implementation": "seqplan",
    }
    cases = tmp_path / "cases.jsonl"
    cases.write_text(
        "\n".join([json.dumps(case), json.dumps(case | {"id": "b", "model": "nil"}), "{"]) + "\n"
    )
    done = seqplan("score", str(cases))
    answers = [json.loads(line) for line in done.out.splitlines()]
    assert len(answers) == 3
    assert answers[0]["id"] == "a"
    assert answers[0]["legal"]
    assert answers[0]["memory"]["peak_bytes"] > 0
    assert answers[1]["id"] == "b"
    assert "nil" in str(answers[1]["error"])
    assert "error" in answers[2]


def test_models_and_clusters(seqplan: Seqplan) -> None:
    listed = seqplan("models").out
    for name in MODELS.split():
        assert any(line.split()[:1] == [name] for line in listed.splitlines()), name
    listed = seqplan("clusters").out
    for name in CLUSTERS.split():
        assert any(line.split()[:1] == [name] for line in listed.splitlines()), name
    assert json.loads(seqplan("models", "--json").out)["schema"] == "seqplan-json/1"
    assert json.loads(seqplan("clusters", "--json").out)["schema"] == "seqplan-json/1"
    shown = seqplan("clusters", "dgx-h100")
    assert shown.status == 0
    assert "source" in shown.out
    assert seqplan("models", "llama3-8b").out.startswith("llama3-8b: decoder, 8,030,261,248 parameters")


def test_clusters_show_the_best_peak_that_a_plan_can_use(seqplan: Seqplan) -> None:
    # H100 SXM: 989.4 dense TFLOP/s in bf16; its 1,979 are fp8.
    [line] = [line for line in seqplan("clusters").out.splitlines() if line.startswith("dgx-h100")]
    assert " 989 " in line


def test_version(seqplan: Seqplan) -> None:
    assert seqplan("--version") == (0, f"seqplan {__version__}\n", "")


def test_models_json_is_the_contract(seqplan: Seqplan) -> None:
    answer = json.loads(seqplan("models", "llama3-8b", "--json").out)
    assert set(answer) >= {"schema", "name", "architecture", "parameters", "parameters_without_head", "notes"}
    # 8,030,261,248: the safetensors index of the published model gives 16,060,522,496 bytes in bf16.
    assert answer["parameters"] == 8_030_261_248
    # Untied: the head alone is 128,256 x 4,096.
    assert answer["parameters"] - answer["parameters_without_head"] == 128_256 * 4_096
