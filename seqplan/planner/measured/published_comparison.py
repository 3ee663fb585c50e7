"""Predicted beside published: each row of a source through the same formulas that plan, and how far off.

A row is planned as its source states it, legal for our own trainer or not; the trainer that measured it is
the one whose inventory is used. Nothing here knows any source: what differs is data.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from seqplan.planner.choosing.layout_table import LayoutTable, from_layouts, num_microbatches, pipeline_key
from seqplan.planner.cluster_spec import ClusterSpec
from seqplan.planner.errors import SeqplanError
from seqplan.planner.estimates import memory_estimates
from seqplan.planner.implementation import ImplementationSpec
from seqplan.planner.layout import Layout
from seqplan.planner.layout_defaults import complete_layout
from seqplan.planner.measured.compared_row import ComparedRow
from seqplan.planner.measured.published import Goal, PublishedFacts, PublishedSource, RowGroup, split_by_home
from seqplan.planner.measured.published_figures import (
    Choices,
    Errors,
    choices,
    memory_errors,
    reached,
    time_errors,
)
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.question import Question
from seqplan.planner.results import MemoryEstimate
from seqplan.planner.rules.legality import verdict
from seqplan.planner.score_cases import Loaders
from seqplan.planner.spec import Spec
from seqplan.planner.time_model import time_table
from seqplan.planner.train_spec import TrainSpec
from seqplan.planner.validation import validate_spec


class GoalResult(Spec):
    """One goal and what was reached."""

    goal: Goal
    value: float
    met: bool


class ComparedSource(Spec):
    """All rows of one source."""

    name: str
    title: str
    source: str
    implementation: str
    memory: Literal["allocated", "reserved"]
    assumptions: tuple[str, ...]
    rows: tuple[ComparedRow, ...]
    compared: int = Field(description="rows with a published memory figure")
    mean_error: float | None = Field(description="of the memory, as the next three")
    median_error: float | None
    worst_error: float | None
    share_within: dict[str, float] = Field(description="share of the compared rows by largest error")
    memory_errors: Errors | None
    time_errors: Errors | None
    choices: Choices | None
    fitted_constants: str = Field(description="which constants were set on figures of this source")
    goals: tuple[GoalResult, ...]

    @property
    def goals_met(self) -> bool:
        return all(result.met for result in self.goals)


def compare(source: PublishedSource, loaders: Loaders) -> ComparedSource:
    """Every row of the source through the memory model."""
    rows: list[ComparedRow] = []
    for group in source.groups:
        rows.extend(_compare_group(source, group, loaders))
    rows = _with_fitted(source, rows)
    errors = memory_errors(rows)
    results = []
    for goal in source.goals:
        counted = [row for row in rows if goal.below_nodes is None or row.nodes < goal.below_nodes]
        value = reached(counted, goal.statistic, goal.within)
        results.append(GoalResult(goal=goal, value=value, met=goal.holds(value)))
    assumptions = [*source.assumptions]
    for group in source.groups:
        assumptions += [f"{group.title}: {text}" for text in group.assumptions]
    return ComparedSource(
        name=source.name,
        title=source.title,
        source=source.source,
        implementation=source.implementation,
        memory=source.memory,
        assumptions=tuple(assumptions),
        rows=tuple(rows),
        compared=0 if errors is None else errors.rows,
        mean_error=None if errors is None else errors.mean,
        median_error=None if errors is None else errors.median,
        worst_error=None if errors is None else errors.worst,
        share_within={} if errors is None else errors.share_within,
        memory_errors=errors,
        time_errors=time_errors(rows),
        choices=choices(rows),
        fitted_constants=source.fitted.constants,
        goals=tuple(results),
    )


def _with_fitted(source: PublishedSource, rows: list[ComparedRow]) -> list[ComparedRow]:
    """The rows, each with what constants were set on it."""
    marked, place = [], 0
    for row in rows:
        place += row.time_error is not None
        timed = row.time_error is not None and source.fitted.has_time_of(
            place, row.row, row.group, row.layout.world_size
        )
        measured = row.error is not None and source.fitted.memory
        marked.append(row.model_copy(update={"time_fitted": timed, "memory_fitted": measured}))
    return marked


def ask_group(
    source: PublishedSource, group: RowGroup, loaders: Loaders
) -> list[tuple[Question, Layout, PublishedFacts]]:
    """Each row as a question with its layout, and what was measured."""
    base, cluster = loaders.model(group.model), loaders.cluster(group.cluster)
    trainer = loaders.implementation(group.implementation or source.implementation)
    return [_ask(source, group, row, base, cluster, trainer) for row in group.rows]


def _compare_group(source: PublishedSource, group: RowGroup, loaders: Loaders) -> list[ComparedRow]:
    """Rows that share model, length and pipeline are rows of one table."""
    asked = ask_group(source, group, loaders)
    tables: dict[tuple[Any, ...], list[int]] = {}
    for place, (question, layout, _) in enumerate(asked):
        train = question.train.model_copy(update={"global_batch_size": 1})
        key = (question.model.model_dump_json(), train.model_dump_json(), *pipeline_key(layout))
        tables.setdefault(key, []).append(place)
    memories: dict[int, MemoryEstimate] = {}
    seconds: dict[int, float] = {}
    for places in tables.values():
        questions = [asked[place][0] for place in places]
        table = from_layouts([asked[place][1] for place in places], questions[0].train)
        batches = [question.train.global_batch_size for question in questions]
        counts = num_microbatches(batches, table.dp, table.micro_batch_size)
        table = replace(table, num_microbatches=counts)
        memories.update(zip(places, memory_estimates(questions[0], table), strict=True))
        seconds.update(zip(places, _step_seconds(questions[0], table), strict=True))
    return [
        _compared(source, group, *asked[place], memories[place], seconds[place])
        for place in range(len(asked))
    ]


def _step_seconds(question: Question, table: LayoutTable) -> list[float]:
    """Rows of one table may stand on different numbers of devices: each number has its own network."""
    seconds = np.zeros(len(table))
    sizes = table.world_size
    for gpus in sorted(set(sizes.tolist())):
        rows = np.flatnonzero(sizes == gpus)
        sized = question.model_copy(update={"cluster": question.cluster.for_gpus(gpus), "gpus": gpus})
        seconds[rows] = time_table(sized, table.take(rows), played=True).step_time_s
    return [float(each) for each in seconds]


def _ask(
    source: PublishedSource,
    group: RowGroup,
    row: tuple[Any, ...],
    base: ModelSpec,
    cluster: ClusterSpec,
    trainer: ImplementationSpec,
) -> tuple[Question, Layout, PublishedFacts]:
    homes = split_by_home(group.values(row))
    where = f"{source.name}, {group.title}, {homes['facts'].get('row', row)}"
    model = (
        validate_spec(ModelSpec, {**base.model_dump(), **homes["model"]}, where) if homes["model"] else base
    )
    train = validate_spec(TrainSpec, homes["train"], where)
    facts = validate_spec(PublishedFacts, homes["facts"], where)
    question = Question(model=model, cluster=cluster, gpus=1, train=train, implementation=trainer)
    layout = complete_layout(question, homes["layout"])
    try:
        sized = cluster.for_gpus(layout.world_size)
    except SeqplanError as error:
        raise SeqplanError(f"{where}: {error.message}", error.hint) from None
    return question.model_copy(update={"cluster": sized, "gpus": layout.world_size}), layout, facts


def _compared(
    source: PublishedSource,
    group: RowGroup,
    question: Question,
    layout: Layout,
    facts: PublishedFacts,
    memory: MemoryEstimate,
    predicted_s: float,
) -> ComparedRow:
    stage = memory.stages[0 if source.stage == "first" else memory.worst_stage]
    predicted = sum(stage.by_kind[kind] for kind in source.kinds)
    if source.memory == "reserved":
        predicted += stage.overhead_by_kind["fragmentation"]
    published = facts.peak_bytes
    train, devices = question.train, layout.world_size
    published_s = facts.step_seconds(train.global_batch_size * train.seq_len, devices)
    return ComparedRow(
        row=facts.row,
        group=group.title,
        implementation=question.implementation.name,
        device=group.ran_on or question.cluster.device.name,
        parameters=question.model.parameters(),
        layout=layout,
        seq_len=question.train.seq_len,
        outcome=facts.outcome,
        published_bytes=published,
        predicted_bytes=predicted,
        error=None if published is None else predicted / published - 1.0,
        peak_bytes=memory.peak_bytes,
        limit_bytes=memory.limit_bytes,
        over_limit=memory.peak_bytes > memory.limit_bytes,
        runnable=verdict(question, layout).runnable,
        estimated_step_s=predicted_s,
        nodes=-(-devices // question.cluster.gpus_per_node),
        global_batch_size=train.global_batch_size,
        published_step_s=published_s,
        predicted_step_s=None if published_s is None else predicted_s,
        time_error=None if published_s is None else predicted_s / published_s - 1.0,
    )
