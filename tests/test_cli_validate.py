"""`validate` and `explain --tensors` as a user types them."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any, NamedTuple

import pytest

from seqplan import profiles
from seqplan.__main__ import main
from tests.command_line import Seqplan, runner

LAYOUT = ("--cluster", "dgx-h100", "--seq-len", "4096", "--global-batch-size", "64", "--layout", "dp4,tp2")


@pytest.fixture
def seqplan(capsys: pytest.CaptureFixture[str]) -> Seqplan:
    return runner(capsys)


class Everything(NamedTuple):
    """All sources, as text in 80 columns and as JSON."""

    out: str
    sources: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def everything() -> Everything:
    printed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        for more in ([], ["--json"]):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                assert main(["validate", *more]) == 0
            printed.append(out.getvalue())
    found = json.loads(printed[1])["sources"]
    return Everything(printed[0], {source["name"]: source for source in found})


def lines_under(out: str, title: str) -> list[list[str]]:
    """The words of the lines of one table or listing, its title left out."""
    (part,) = [part for part in out.split("\n\n") if part.startswith(title)]
    return [line.split() for line in part.splitlines()[1:]]


def test_validate_sums_up_every_source(everything: Everything) -> None:
    assert max(len(line) for line in everything.out.splitlines()) <= 80
    for name in profiles.published_names():
        assert any(line.startswith(name) for line in everything.out.splitlines()), name
    assert "Goals, all met" in everything.out


@pytest.mark.parametrize(
    ("title", "key", "limit"),
    [
        ("Error of the memory, and", "memory_errors", "0.1"),
        ("Error of the step time, and", "time_errors", "0.15"),
    ],
)
def test_validate_sums_up_errors(everything: Everything, title: str, key: str, limit: str) -> None:
    head, _, *rows = lines_under(everything.out, title)
    assert head[:7] == ["source", "runs", "fitted", "median", "others", "p90", "worst"]
    assert [row[0] for row in rows] == [name for name, found in everything.sources.items() if found[key]]
    for name, runs, fitted, *figures in rows:  # a name in one piece, and every figure on its line
        errors = everything.sources[name][key]
        assert [int(runs), int(fitted)] == [errors["rows"], errors["fitted"]]
        assert figures[:2] == [f"{100 * errors['median']:.1f}", "%"]
        assert figures[-2] == f"{100 * errors['share_within'][limit]:.0f}"


def test_validate_sums_up_the_choice(everything: Everything) -> None:
    _, _, *rows = lines_under(everything.out, "Choice of the layout")
    chosen = {name: found["choices"] for name, found in everything.sources.items() if found["choices"]}
    assert [row[0] for row in rows] == list(chosen)
    picks = {row[0]: row[2] for row in rows}
    assert picks["nanotron-cells"] == f"{100 * chosen['nanotron-cells']['pick']:.1f}"


def test_every_goal_says_of_what(everything: Everything) -> None:
    goals = [line for line in lines_under(everything.out, "Goals, all met") if line[0] == "-"]
    assert len(goals) > 30
    assert {line[2] for line in goals} <= {"memory,", "choice,", "step"}


def test_validate_says_which_constants_were_fitted(seqplan: Seqplan) -> None:
    out = " ".join(seqplan("validate", "nvidia-performance").out.split())
    assert "fitted: how many of these runs set constants" in out
    assert "nvidia-performance: efficiencies of H100" in out


def test_validate_shows_the_rows_of_one_source(seqplan: Seqplan) -> None:
    done = seqplan("validate", "ring-self-attention")
    assert done.status == 0
    assert "assumed here" in done.out
    assert "the model is BERT Large" in " ".join(done.out.split())
    rows = [line.split() for line in done.out.splitlines() if line.startswith(("tp ", "sp "))]
    assert len(rows) == 16 + 15  # memory of all rows, time of those that ran
    assert rows[1][:6] == ["tp", "2", "dp1,pp8,tp2,sp1", "mbs16", "512", "9.30"]
    assert sum(row[-1] == "yes" for row in rows[16:]) == 7  # every second of those timed set constants
    out_of_memory = next(row for row in rows if "memory" in row)
    assert out_of_memory[-1] == "yes"


def test_validate_as_json(seqplan: Seqplan) -> None:
    answer = json.loads(seqplan("validate", "simumax-b200", "--json").out)
    assert answer["schema"] == "seqplan-json/1"
    (source,) = answer["sources"]
    assert source["median_error"] <= 0.03
    assert set(source["share_within"]) == {"0.05", "0.1", "0.15", "0.2"}
    row = source["rows"][0]
    assert row["error"] == pytest.approx(row["predicted_bytes"] / row["published_bytes"] - 1, rel=1e-12)


def test_a_missed_goal_exits_1(seqplan: Seqplan, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = profiles.load_published("simumax-b200")
    goal = spec.goals[0].model_copy(update={"at_most": 1e-6, "unmet_because": "set so by a test"})
    strict = spec.model_copy(update={"goals": (goal,)})
    monkeypatch.setattr(profiles, "load_published", lambda name: strict)
    done = seqplan("validate", "simumax-b200")
    assert done.status == 1
    assert "1 missed goal" in done.out
    assert "MISSED: simumax-b200: step time, median error: " in done.out
    assert "set so by a test" in done.out


def test_an_unknown_source_is_one_line(seqplan: Seqplan) -> None:
    done = seqplan("validate", "simumax")
    assert done.status == 2
    assert len(done.err.splitlines()) == 1
    assert "simumax-b200" in done.err


@pytest.mark.parametrize("trainer", ["seqplan", "megatron-core", "nanotron", "torchtitan"])
def test_explain_lists_the_tensors_of_a_layer(seqplan: Seqplan, trainer: str) -> None:
    typed = ("explain", "llama3-8b", *LAYOUT, "--implementation", trainer, "--tensors")
    done = seqplan(*typed)
    assert done.status == 0
    assert "Tensors of one layer, one micro-batch of 1 on one rank" in done.out
    tensors: list[dict[str, Any]] = json.loads(seqplan(*typed, "--json").out)["tensors"]
    by_name = {tensor["name"]: tensor for tensor in tensors}
    # 4,096 tokens of 32 heads of 128, half of them on this rank, in bf16.
    assert by_name["attention output"]["size_bytes"] == 4096 * 16 * 128 * 2
    assert all(tensor["kept"] for tensor in tensors if tensor["name"] == "layer input")
    for tensor in tensors:
        assert f"{tensor['size_bytes']:,.0f}" in done.out


def test_explain_says_what_is_recomputed(seqplan: Seqplan) -> None:
    typed = ("explain", "llama3-8b", *LAYOUT, "--recompute", "full", "--tensors", "--json")
    tensors = json.loads(seqplan(*typed).out)["tensors"]
    assert [tensor["name"] for tensor in tensors if tensor["kept"]] == ["layer input"]
    assert len(tensors) > 5


def test_without_the_flag_no_tensors(seqplan: Seqplan) -> None:
    assert "tensors" not in json.loads(seqplan("explain", "llama3-8b", *LAYOUT, "--json").out)
