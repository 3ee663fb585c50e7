"""The help texts: whole sentences in the list of commands, and the form of every value that has one."""

from __future__ import annotations

import json

import pytest
import typer

from seqplan import profiles
from seqplan.cli import app
from seqplan.planner.score_cases import EXAMPLE
from tests.command_line import Seqplan, runner
from tests.readme import README

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


@pytest.fixture
def seqplan(capsys: pytest.CaptureFixture[str]) -> Seqplan:
    return runner(capsys)


def test_no_summary_is_cut_short(seqplan: Seqplan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = seqplan("--help").out.partition("Commands:")[2]
    assert "..." not in listed
    for name in COMMANDS:
        assert any(line.split()[:1] == [name] and line.endswith(".") for line in listed.splitlines()), name


@pytest.mark.parametrize("name", COMMANDS)
def test_help_speaks_of_flags_not_of_python(seqplan: Seqplan, name: str) -> None:
    words = " ".join(seqplan(name, "--help").out.split())
    assert "None" not in words
    assert "('" not in words


def test_lists_show_their_form(seqplan: Seqplan) -> None:
    words = " ".join(seqplan("suggest", "--help").out.split())
    assert "--mesh-order <str> the axes, outermost first: pp,dp,sp,tp" in words
    assert "--stage-layers <str> layers of each pipeline stage: 8,8,7,7" in words


def test_the_help_names_the_trainers(seqplan: Seqplan) -> None:
    words = " ".join(seqplan("suggest", "--help").out.split()).replace("- ", "-")  # a name may be broken
    told = words.partition("the trainer that has to run it: ")[2].partition(" [default")[0]
    named = told.replace(" or ", ", ").split(", ")
    assert sorted(named) == sorted(profiles.implementation_names())
    readme = README.read_text(encoding="utf-8")
    assert all(f"`{name}`" in readme for name in named)


def test_the_help_of_score_shows_the_case_that_its_errors_show(seqplan: Seqplan) -> None:
    """The help breaks it into three lines; as one object it is the example."""
    shown = seqplan("score", "--help").out
    case = shown[shown.index('{"id"') : shown.rindex("micro_batch_size=1") + len('micro_batch_size=1"}')]
    assert json.loads(case) == json.loads(EXAMPLE)
    assert "exit 1 if every case is one" in " ".join(shown.split())
