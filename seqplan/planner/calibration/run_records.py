"""What a finished run says of itself in metrics.jsonl: what was run, where, and how long its steps took.

The line of the first step carries the run (`RunHeader`), so that the file needs nothing beside it; every line
has its step's time. A file that cannot be what it should be is refused in one line that names it.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from seqplan.planner.cluster_spec import ClusterSpec
from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import Layout
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.reading.text_file import read_text
from seqplan.planner.spec import Spec
from seqplan.planner.train_spec import TrainSpec
from seqplan.planner.validation import validate_spec

SCHEMA = "seqplan-run/1"

LEAST_STEP_S, MOST_STEP_S = 1e-6, 1e6
"""Of one training step: a kernel's launch takes longer, and no run waits eleven days for one step."""

LARGEST_FILE_BYTES = 2**28
"""A line a step: hundreds of bytes each, so a million steps."""


class RunHeader(Spec):
    """What the steps of a metrics file are steps of."""

    schema_: Literal["seqplan-run/1"] = Field(default="seqplan-run/1", alias="schema")
    model: ModelSpec
    cluster: ClusterSpec
    gpus: int = Field(ge=1)
    train: TrainSpec
    layout: Layout
    implementation: str
    device: Literal["cpu", "cuda"] = Field(description="what it ran on, whatever the plan's cluster has")
    planned_step_time_s: float = Field(gt=0, allow_inf_nan=False)
    untimed_steps: int = Field(ge=0, description="first steps that built what the others use")


@dataclass(frozen=True)
class Run:
    """One metrics file."""

    path: str
    header: RunHeader
    step_time_s: float
    """Median of the timed steps."""
    steps: int
    """How many were timed."""


def read_run(path: Path) -> Run:
    """The run in a metrics file, or one SeqplanError."""
    lines = read_text(path, max_bytes=LARGEST_FILE_BYTES).splitlines()
    rows = [_row(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    header = _header(rows[0], path)
    steps = [_step(row, f"{path}, line {number}") for number, row in enumerate(rows, 1)]
    for number, (before, after) in enumerate(pairwise(steps), 2):
        if after[0] <= before[0]:
            raise SeqplanError(
                f"{path}, line {number}: step {after[0]} follows step {before[0]}; steps must rise.",
                "Give each run's file by itself.",
            )
    timed = [seconds for step, seconds in steps if step > header.untimed_steps]
    if not timed:
        raise SeqplanError(
            f"{path}: has {len(steps)} steps, and the first {header.untimed_steps} of a run are not timed.",
            f"Run {header.untimed_steps + 3} steps or more.",
        )
    return Run(str(path), header, statistics.median(timed), len(timed))


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise SeqplanError(f"{where}: is not JSON; a metrics file has one object a line.") from None
    if not isinstance(value, dict):
        raise SeqplanError(f"{where}: is no JSON object; a metrics file has one object a line.")
    return value


def _header(first: dict[str, Any], path: Path) -> RunHeader:
    run = first.get("run")
    if not isinstance(run, dict):
        raise SeqplanError(
            f"{path}: its first line has no `run`: it is no metrics file, or of a seqplan before this one.",
            "Give the metrics.jsonl of a run.",
        )
    if run.get("schema") != SCHEMA:
        raise SeqplanError(f"{path}: its run has the schema {run.get('schema')!r}, not {SCHEMA!r}.")
    header = validate_spec(RunHeader, run, f"{path}, run")
    if header.layout.world_size != header.gpus:
        raise SeqplanError(
            f"{path}, run: gpus = {header.gpus}, and its layout {header.layout.degrees_text} has "
            f"{header.layout.world_size} ranks.",
            "Give the metrics.jsonl of a run as it was written.",
        )
    return header


def _step(row: dict[str, Any], where: str) -> tuple[int, float]:
    step, seconds = row.get("step"), row.get("step_time_s")
    if not isinstance(step, int) or isinstance(step, bool):
        raise SeqplanError(f"{where}: step = {step!r} must be a whole number.")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise SeqplanError(f"{where}: step_time_s = {seconds!r} must be a number.")
    if not math.isfinite(seconds) or seconds <= 0:
        raise SeqplanError(f"{where}: step_time_s = {seconds!r} must be a finite number above 0.")
    if not LEAST_STEP_S <= seconds <= MOST_STEP_S:
        raise SeqplanError(
            f"{where}: step_time_s = {seconds!r} is no time of a training step.",
            f"Seconds are meant, from {LEAST_STEP_S:g} to {MOST_STEP_S:g}.",
        )
    return step, float(seconds)
