"""`explain --layout`: which defaults a layout typed in part took, and the best that it could have had."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.command_line import Seqplan, runner

SIZES = ["--cluster", "dgx-h100", "--seq-len", "8192", "--global-batch-size", "16"]
LLAMA = ["llama3-8b", *SIZES]


@pytest.fixture
def seqplan(capsys: pytest.CaptureFixture[str]) -> Seqplan:
    return runner(capsys)


def test_the_best_completion_is_what_suggest_picks_with_the_same_pins(seqplan: Seqplan) -> None:
    typed = ["--layout", "dp1,pp2,tp2,sp2,recompute=full", "--zero-stage", "2"]
    scored = json.loads(seqplan("explain", *LLAMA, *typed, "--json").out)
    rest = scored["completion"]
    assert not set(rest["defaults"]) & {"dp", "pp", "tp", "sp", "recompute", "zero_stage"}
    assert rest["defaults"]["micro_batch_size"] == 1
    assert all(scored["layout"][name] == value for name, value in rest["defaults"].items())
    pins = ["--pp", "2", "--tp", "2", "--sp", "2", "--recompute", "full", "--zero-stage", "2"]
    pick = json.loads(seqplan("suggest", *LLAMA, "--gpus", "8", *pins, "--json").out)["pick"]
    assert rest["best"]["layout"] == pick["layout"]
    assert rest["best"]["time"] == pick["time"]


def test_it_is_said_in_two_entries(seqplan: Seqplan) -> None:
    lines = " ".join(seqplan("explain", *LLAMA, "--layout", "dp1,pp2,tp2,sp2").out.split())
    assert "Not given defaults taken: --micro-batch-size 1 --attention ring " in lines
    assert "--mesh-order pp,dp,sp,tp --stage-layers 16,16" in lines
    assert "best with dp1,pp2,tp2,sp2: --" in lines
    assert " GiB, " in lines[lines.index("best with") : lines.index("a step With nothing pinned")]


def test_flags_that_it_names_give_that_layout(seqplan: Seqplan) -> None:
    """What differs from the defaults, pasted behind the same --layout, is the layout with that time."""
    shown = seqplan("explain", *LLAMA, "--layout", "dp1,pp2,tp2,sp2").out
    words = " ".join(shown.split())
    flags = words.split("best with dp1,pp2,tp2,sp2: ")[1].split(": ")[0].split()
    best = json.loads(seqplan("explain", *LLAMA, "--layout", "dp1,pp2,tp2,sp2", "--json").out)["completion"][
        "best"
    ]
    again = json.loads(seqplan("explain", *LLAMA, "--layout", "dp1,pp2,tp2,sp2", *flags, "--json").out)
    assert again["layout"] == best["layout"]
    assert again["time"]["step_time_s"] == pytest.approx(best["time"]["step_time_s"], rel=1e-9)
    pasted = seqplan("explain", *LLAMA, "--layout", "dp1,pp2,tp2,sp2", *flags).out
    assert "best with dp1,pp2,tp2,sp2: these defaults" in pasted


@pytest.mark.parametrize("typed", ["dp3,tp2", "dp8"])
def test_where_nothing_completes_it(seqplan: Seqplan, typed: str) -> None:
    # 3 does not divide a batch of 16; 405 G parameters do not fit 8 devices in any way.
    shown = seqplan("explain", "llama3-405b", *SIZES, "--layout", typed)
    assert shown.status == 0
    assert "nothing with what was given is legal and fits" in " ".join(shown.out.split())


def test_a_plan_file_leaves_nothing_open(seqplan: Seqplan, tmp_path: object) -> None:
    plan = f"{tmp_path}/plan.yaml"
    assert seqplan("suggest", *LLAMA, "--gpus", "8", "-o", plan).status == 0
    assert "Not given" not in seqplan("explain", plan).out
    assert "completion" not in json.loads(seqplan("explain", plan, "--json").out)


def test_the_free_pick_is_what_suggest_picks_and_the_causes_add_up(seqplan: Seqplan) -> None:
    typed = ["--layout", "dp1,pp2,tp2,sp2,recompute=full"]
    scored = json.loads(seqplan("explain", *LLAMA, *typed, "--json").out)
    free = scored["free_pick"]
    pick = json.loads(seqplan("suggest", *LLAMA, "--gpus", "8", "--json").out)["pick"]
    assert free["pick"]["layout"] == pick["layout"] != scored["layout"]
    more_s = scored["time"]["step_time_s"] - pick["time"]["step_time_s"]
    assert sum(free["more_by_kind"].values()) == pytest.approx(more_s, rel=1e-9)
    words = " ".join(seqplan("explain", *LLAMA, *typed).out.split())
    assert "With nothing pinned - suggest picks dp" in words
    assert f"this layout takes {100 * more_s / pick['time']['step_time_s']:.1f} % longer: " in words
    best_s = scored["completion"]["best"]["time"]["step_time_s"]
    slower = 100 * (best_s / pick["time"]["step_time_s"] - 1)
    assert f"- the best with dp1,pp2,tp2,sp2 takes {slower:.1f} % longer: " in words


def test_the_pick_itself_has_nothing_beside_it(seqplan: Seqplan, tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.yaml")
    assert seqplan("suggest", *LLAMA, "--gpus", "8", "-o", plan).status == 0
    assert "With nothing pinned" not in seqplan("explain", plan).out
    assert json.loads(seqplan("explain", plan, "--json").out)["free_pick"] is None


def test_a_layout_that_cannot_be_is_compared_as_far_as_it_can(seqplan: Seqplan) -> None:
    words = " ".join(seqplan("explain", *LLAMA, "--layout", "dp8,recompute=none").out.split())
    assert "this layout would take " in words
    assert ", if it could be run" in words
    words = " ".join(seqplan("explain", *LLAMA, "--gpus", "8", "--layout", "dp3").out.split())
    assert "a step; this layout" not in words[words.index("With nothing pinned - suggest picks dp") :]


def test_pins_say_what_they_cost(seqplan: Seqplan) -> None:
    asked = [*LLAMA, "--gpus", "8"]
    free = json.loads(seqplan("suggest", *asked, "--json").out)
    assert free["free_pick"] is None
    pinned = json.loads(seqplan("suggest", *asked, "--pp", "4", "--json").out)
    assert pinned["free_pick"]["pick"]["time"] == free["pick"]["time"]
    more_s = pinned["pick"]["time"]["step_time_s"] - free["pick"]["time"]["step_time_s"]
    assert sum(pinned["free_pick"]["more_by_kind"].values()) == pytest.approx(more_s, rel=1e-9)
    words = " ".join(seqplan("suggest", *asked, "--pp", "4").out.split())
    assert "with nothing pinned suggest picks dp" in words
    assert "; the pick takes " in words
    same = str(free["pick"]["layout"]["pp"])
    assert json.loads(seqplan("suggest", *asked, "--pp", same, "--json").out)["free_pick"] is None


def test_the_simulated_step_is_written_whole_or_not_at_all(seqplan: Seqplan, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    typed = [*LLAMA, "--layout", "dp2,pp4,tp1", "--trace", str(path)]
    answer = seqplan("explain", *typed, "--json")
    assert answer.err.splitlines()[-1] == f"written: {path}: open it in ui.perfetto.dev"
    trace = json.loads(path.read_text())
    seconds = json.loads(answer.out)["time"]["step_time_s"]
    assert trace["otherData"]["step_time_s"] == pytest.approx(seconds, rel=1e-9)
    assert os.listdir(tmp_path) == ["trace.json"]
    plan = str(tmp_path / "plan.yaml")
    assert seqplan("suggest", *LLAMA, "--gpus", "8", "-o", plan).status == 0
    assert seqplan("explain", plan, "--trace", str(path)).status == 0
    assert json.loads(path.read_text())["otherData"]["devices"] == 8


def test_a_trace_that_cannot_be_written_is_one_line(seqplan: Seqplan, tmp_path: Path) -> None:
    for path, says in ((tmp_path / "no" / "t.json", "does not exist"), (tmp_path, "is a folder")):
        answer = seqplan("explain", *LLAMA, "--layout", "dp2,pp4", "--trace", str(path))
        assert answer.status == 2
        (line,) = answer.err.strip().splitlines()
        assert says in line
    assert os.listdir(tmp_path) == []


def test_a_bad_order_of_the_mesh_is_seen_and_is_slower(seqplan: Seqplan) -> None:
    """tp outermost: its all-reduces leave the node, which the usual order keeps inside."""
    found = {}
    for order in ("pp,dp,sp,tp", "tp,pp,dp,sp"):
        typed = ["--layout", f"dp2,pp2,tp4,mesh_order={order}", "--json"]
        found[order] = json.loads(seqplan("explain", *LLAMA, *typed).out)
    usual, bad = found.values()
    (inside,) = [line for line in usual["placement"] if line.startswith("tp=4")]
    (over,) = [line for line in bad["placement"] if line.startswith("tp=4")]
    assert "inside a node" in inside
    assert "over 2 nodes" in over
    assert bad["time"]["by_kind"]["tp"] > 2 * usual["time"]["by_kind"]["tp"]
    assert bad["time"]["step_time_s"] > usual["time"]["step_time_s"]


def test_where_the_groups_lie_is_shown_and_in_the_json(seqplan: Seqplan, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("base: dgx-h100\nnum_nodes: 2\ninter_node: {base: ib-ndr, bytes_per_s: 400 GB/s}\n")
    sizes = ["--cluster", str(path), "--seq-len", "8192", "--global-batch-size", "16"]
    typed = ["explain", "llama3-8b", *sizes, "--layout", "dp2,tp8,zero_stage=0,micro_batch_size=1"]
    answer = json.loads(seqplan(*typed, "--json").out)
    assert [line.partition("=")[0] for line in answer["placement"]] == ["tp", "gradients over dp x sp"]
    assert any("fastest network ports" in text for text in answer["warnings"])
    words = " ".join(seqplan(*typed).out.split())
    assert "Where the groups lie - tp=8: inside a node, 346 GB/s a rank (nvlink4)" in words
    assert "gradients over dp x sp=2: over 2 nodes, 1 rank of it on each; 8 groups share" in words


def test_the_states_of_a_small_model_are_not_zero(seqplan: Seqplan) -> None:
    typed = ["--cluster", "local", "--gpus", "4", "--seq-len", "512", "--global-batch-size", "8"]
    said = " ".join(seqplan("explain", "tiny", "--layout", "dp4", *typed).out.split())
    assert "zero_stage=0: 27.7 MiB on stage 0 at its fullest, which leaves " in said
