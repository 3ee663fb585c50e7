"""The answer of `validate`: predicted beside published, a source in full or all of them in one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from seqplan.planner.measured.published_comparison import ComparedRow, ComparedSource, GoalResult
from seqplan.render import block, gib, listing, percent, plural, show, table

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

GOAL_TEXTS = {
    "median_error": "median error",
    "mean_error": "mean error",
    "worst_error": "worst error",
    "share_within": "share of rows within",
    "out_of_memory_share": "runs out of memory that are predicted over the limit",
    "finished_over_limit_share": "finished runs that are predicted over the limit",
    "median_time_error": "median error of the step time",
    "worst_time_error": "worst error of the step time",
    "time_share_within": "share of rows whose step time is within",
    "rank_correlation": "Spearman's correlation of predicted and measured speed, median of cells",
    "pick_throughput": "speed of the layout predicted fastest over the best, mean of cells",
    "best_of_three_throughput": "the same of the best of the first three",
    "choice_throughput": "the same of all that were tried and are predicted to fit, a failed one as 0",
}

OUTCOMES = {
    "ran": "",
    "out_of_memory": "out of memory",
    "likely_out_of_memory": "likely out of memory",
    "failed": "failed",
}


def show_sources(sources: Sequence[ComparedSource], in_full: bool) -> None:
    """All sources in one table, and with `in_full` the rows of each."""
    parts: list[RenderableType | None] = []
    for source in sources if in_full else ():
        parts += [
            block(source.title, [source.source, f"{source.memory} memory, trainer {source.implementation}"]),
            listing("Not stated by the source, assumed here", source.assumptions),
            rows_table(source) if source.compared else None,
            times_table(source),
        ]
    parts += [summary(sources), goals(sources)]
    if not in_full:
        parts.append(listing("Rows", [f"seqplan validate {source.name}" for source in sources]))
    show(parts)


def rows_table(source: ComparedSource) -> Group:
    """Every row: the layout, published, predicted and the error."""
    return table(
        "GiB a rank, published and predicted",
        ["row", "layout", "tokens", "published", "predicted", "error", "over limit"],
        [_row(row) for row in source.rows],
        left=("row", "layout"),
    )


def times_table(source: ComparedSource) -> Group | None:
    """The rows with a published time."""
    lines = [
        [
            row.row,
            f"{row.layout.degrees_text} mbs{row.layout.micro_batch_size}",
            f"{row.published_step_s:,.3f}",
            f"{row.predicted_step_s:,.3f}",
            f"{100 * row.time_error:+.1f} %",
        ]
        for row in source.rows
        if row.published_step_s is not None
        and row.predicted_step_s is not None
        and row.time_error is not None
    ]
    if not lines:
        return None
    columns = ["row", "layout", "published", "predicted", "error"]
    return table("Seconds a step, published and predicted", columns, lines, left=("row", "layout"))


def _row(row: ComparedRow) -> list[str]:
    published = OUTCOMES[row.outcome] or "-"
    if row.published_bytes is not None:
        published = gib(row.published_bytes)
    error = "" if row.error is None else f"{100 * row.error:+.1f} %"
    batch = f"{row.layout.degrees_text} mbs{row.layout.micro_batch_size}"
    over = "yes" if row.over_limit else ""
    return [row.row, batch, f"{row.seq_len:,}", published, gib(row.predicted_bytes), error, over]


def summary(sources: Sequence[ComparedSource]) -> Group:
    """One line a source."""
    lines = []
    for source in sources:
        errors = [source.mean_error, source.median_error, source.worst_error, *source.share_within.values()]
        cells = ["-" if value is None else percent(value) for value in errors]
        lines.append([source.name, str(len(source.rows)), str(source.compared), *cells])
    columns = ["source", "rows", "compared", "mean", "median", "worst", "in 5 %", "in 10 %", "in 20 %"]
    return table("Error of the memory, and the share of rows within it", columns, lines, left=("source",))


def goals(sources: Sequence[ComparedSource]) -> Group | None:
    """Every goal with what was reached, and why not where it was not."""
    lines = []
    for source in sources:
        lines += [f"{source.name}: {_goal(result)}" for result in source.goals]
    missed = sum(not result.met for source in sources for result in source.goals)
    title = "Goals, all met" if not missed else f"Goals: {plural(missed, 'missed goal')}"
    return listing(title, lines, "bold green" if not missed else "bold red")


def _goal(result: GoalResult) -> str:
    goal = result.goal
    text = GOAL_TEXTS[goal.statistic]
    if goal.within is not None:
        text = f"{text} {percent(goal.within)}"
    bound = f"at most {percent(goal.at_most)}" if goal.at_most is not None else ""
    if goal.at_least is not None:
        bound = f"at least {percent(goal.at_least)}"
    if goal.below_nodes is not None:
        bound += f"; runs below {goal.below_nodes} nodes"
    why = f"; {goal.unmet_because}" if goal.unmet_because and not result.met else ""
    return f"{'met' if result.met else 'MISSED'}: {text} {percent(result.value)} ({bound}){why}"
