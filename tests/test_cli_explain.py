"""`explain --layout`: which defaults a layout typed in part took, and the best that it could have had."""

from __future__ import annotations

import json

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
    assert " GiB, " in lines[lines.index("best with") : lines.index("a step What a rank holds")]


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
