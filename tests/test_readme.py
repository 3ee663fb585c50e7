"""The README tells the truth: its transcript, its examples, and what it says seqplan cannot do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
import yaml

from seqplan import profiles, render
from seqplan.cli import app
from seqplan.planner.errors import SeqplanError
from seqplan.planner.question import Pins
from seqplan.planner.rules.model_features import missing_features
from seqplan.runtime.metrics import RunSummary, StageSummary
from seqplan.runtime.progress import summary_table
from tests import grid, readme
from tests.command_line import Seqplan, runner

TEXT = readme.README.read_text(encoding="utf-8")
OURS = profiles.load_implementation("seqplan").capabilities

STABLE = {
    "pick": r"^Pick: (.*)$",
    "choices": r"^Pick: .*\n  (micro-batch [^\n]*(?:\n  \S[^\n]*)*?)\n  memory",
    "ranked": r"^Best (\d+) of ([\d,]+) that fit",
    "counts": r"^([\d,]+) candidates, ([\d,]+) legal, ([\d,]+) fit;",
    "fell": r"^ *[\d,]+  (\w+)  ",
    "written": r"^written: (.*)$",
}
"""What a reader compares; figures of time and memory may move with the model behind them."""


def stable(answer: str) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {
        name: re.findall(pattern, answer, re.MULTILINE) for name, pattern in STABLE.items()
    }
    assert all(found.values()), found
    return found


@pytest.fixture
def seqplan(capsys: pytest.CaptureFixture[str]) -> Seqplan:
    return runner(capsys)


def test_the_transcript_is_what_its_command_prints() -> None:
    words, answer = readme.shown()
    assert words[-2:] == ["-o", "plan.yaml"]
    again = "README.md is stale: run `.venv/bin/python -m tests.readme`"
    assert stable(answer) == stable(readme.printed(words)), again


@pytest.mark.parametrize("row", readme.limits_rows(), ids=lambda row: row.flags)
def test_how_far_a_sequence_goes(seqplan: Seqplan, row: readme.LimitsRow) -> None:
    found = tuple(
        readme.longest(row.flags, model, lambda words: seqplan(*words).out) for model in readme.MODELS
    )
    assert row.cells == found, "README.md is stale: run `.venv/bin/python -m tests.readme`"


def test_the_rows_of_the_table_are_found() -> None:
    section = TEXT.partition("## How far a sequence goes")[2].partition("\n## ")[0]
    assert len(readme.limits_rows()) == section.count("\n| ") - 1, "each row but the head has its command"
    (example,) = re.findall(r"^seqplan (limits .*)$", section, re.MULTILINE)
    assert any(example.endswith(f"{row.flags}") for row in readme.limits_rows())


SIZES = {"MiB": 2.0**20, "GiB": 2.0**30, "ms": 1e-3, "s": 1.0}


def test_the_demos_end_is_laid_out_as_run_prints_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its figures are one run's, so they are put into today's table; the ratios must follow from them."""
    (block,) = re.findall(r"^```\n( +\d+ steps, loss .*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    steps, first, last = re.findall(r"(\d+) steps, loss ([\d.]+) to ([\d.]+)", block)[0]
    stages = []
    for cells in (line.split("\u2502")[1:-1] for line in block.splitlines() if "\u2502" in line):
        number, *figures = [cell.split() for cell in cells]
        planned, measured, _, planned_s, measured_s, _ = [
            float(figure[0]) * SIZES[figure[1]] if len(figure) == 2 else 0.0 for figure in figures
        ]
        stages.append(
            StageSummary(
                stage=int(number[0]),
                planned_memory_bytes=planned,
                measured_memory_bytes=round(measured),
                planned_step_time_s=planned_s,
                measured_step_time_s=measured_s,
            )
        )
    assert len(stages) == 2
    summary = RunSummary(
        steps=int(steps),
        first_loss=float(first),
        last_loss=float(last),
        tokens_per_s=None,
        mfu=None,
        memory_kind="tensors",
        stages=tuple(stages),
        output_dir="demo-run",
    )
    monkeypatch.setenv("COLUMNS", readme.WIDTH)
    capsys.readouterr()
    render.show([summary_table(summary)])
    assert capsys.readouterr().out == block, "run make demo and show its end"


def test_the_grid_has_as_many_points_as_the_architecture_says() -> None:
    house = (readme.README.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    (counted,) = re.findall(r"`make grid` shows where \((\d+) points,", house)
    assert int(counted) == grid.SIZE + grid.SMALL_SIZE


def commands_block() -> str:
    (block,) = re.findall(r"^## Commands\n\n```\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    return str(block)


def test_every_command_stands_in_the_readme() -> None:
    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    shown = {line.split()[1] for line in commands_block().splitlines()}
    assert shown == known, "list the command in README.md under Commands, and say below what it does"


@pytest.mark.parametrize(
    "name", ["suggest", "explain", "score", "limits", "verify", "validate", "calibrate", "fit"]
)
def test_every_flag_stands_in_the_readme(name: str) -> None:
    """But those of a layout's fields, which the README says are there, and those of a run's options."""
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    flags = {each.name: each.opts[0] for each in command.params if each.opts[0].startswith("--")}
    missing = [flag for field, flag in flags.items() if field not in Pins.model_fields and flag not in TEXT]
    assert not missing, "give each a sentence in README.md under Commands"


def test_the_line_for_score_is_answered(seqplan: Seqplan, tmp_path: Path) -> None:
    (line,) = re.findall(r'^\{"id".*\}$', TEXT, re.MULTILINE)
    cases = tmp_path / "cases.jsonl"
    cases.write_text(line + "\n")
    answer = json.loads(seqplan("score", str(cases)).out)
    assert answer["legal"]
    assert answer["memory"]["peak_bytes"] > 0


def test_the_cluster_file_is_read(tmp_path: Path) -> None:
    (written,) = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(written.splitlines()) == 5
    path = tmp_path / "lab.yaml"
    path.write_text(written, encoding="utf-8")
    assert profiles.load_cluster(path).num_nodes == yaml.safe_load(written)["num_nodes"]


def test_every_trainer_is_named() -> None:
    for name in profiles.implementation_names():
        assert f"`{name}`" in TEXT, name


LIMITS = TEXT.partition("## What it cannot do")[2].partition("\n## ")[0]


def test_what_it_cannot_train_is_as_the_profile_says() -> None:
    assert "fp16" not in OURS.precisions
    assert "no fp16" in " ".join(LIMITS.split())
    (named,) = re.findall(r"Planned but not trained[^`]*((?:`\w+`,? ?(?:and )?\s*)+)", LIMITS)
    features = re.findall(r"`(\w+)`", named)
    assert len(features) >= 5
    assert not set(features) & set(OURS.model_features)
    neox = profiles.load_model("gpt-neox-20b")[0]
    assert "parallel_block=true" in missing_features(neox, 2048, OURS.model_features)


GEMMA = {
    "model_type": "gemma",
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "num_hidden_layers": 18,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
}
"""google/gemma-2b's config.json: sizes of arXiv 2403.08295, table 1."""


def test_gemma_is_planned_but_not_trained(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GEMMA))
    gemma = profiles.load_model(path)[0]
    missing = {each.split("=")[0] for each in missing_features(gemma, 8192, OURS.model_features)}
    assert {"embedding_scale", "norm_weight_plus_one"} <= missing
    assert all(f"`{name}`" in LIMITS for name in missing)


@pytest.mark.parametrize("kind", ["mixtral", "t5", "mamba"])
def test_what_it_refuses_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**GEMMA, "model_type": kind}))
    with pytest.raises(SeqplanError):
        profiles.load_model(path)
