"""The answer of `validate`: predicted beside published, a source in full or all of them in one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from seqplan.planner.measured.compared_row import ComparedRow
from seqplan.planner.measured.published_comparison import ComparedSource, GoalResult
from seqplan.planner.measured.published_figures import Errors
from seqplan.planner.measured.trainer_times import trainer_times
from seqplan.planner.reading.integers import listed
from seqplan.render import block, gib, group, listing, percent, plural, show, table

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

GOAL_TEXTS = {
    "median_error": "memory, median error",
    "mean_error": "memory, mean error",
    "worst_error": "memory, worst error",
    "share_within": "memory, share of runs with an error of at most",
    "out_of_memory_share": "memory, share of the runs out of memory predicted over the limit",
    "finished_over_limit_share": "memory, share of the finished runs predicted over the limit",
    "median_time_error": "step time, median error",
    "worst_time_error": "step time, worst error",
    "time_share_within": "step time, share of runs with an error of at most",
    "rank_correlation": "choice, rank correlation",
    "pick_throughput": "choice, pick",
    "best_of_three_throughput": "choice, best of three",
    "choice_throughput": "choice, pick of all tried",
}
"""Each says of what; the words of a choice are explained below its table."""

CHOICE_TERMS = (
    "pick: of the layouts that ran, the one predicted fastest: its measured speed over that of the best run",
    "best of three: the same of the best of the three predicted fastest",
    "of all tried: the same of the pick among all that were tried, are legal and are predicted to fit; one "
    "that did not finish counts as 0",
    "rank: Spearman's correlation of predicted and measured speed",
    "cells: a model on a number of devices, of which three layouts or more ran; rank is their median, the "
    "others are their mean",
)

FITTED_TERMS = (
    "fitted: how many of these runs set constants of the trainer, the device or a link",
    "others: the median error of the runs that set none",
)

OUTCOMES = {
    "ran": "",
    "out_of_memory": "out of memory",
    "likely_out_of_memory": "likely out of memory",
    "failed": "failed",
}


def show_sources(sources: Sequence[ComparedSource], in_full: bool) -> None:
    """All sources in a table each for memory, step times and choice; with `in_full` the rows of each."""
    parts: list[RenderableType | None] = []
    for source in sources if in_full else ():
        parts += [
            block(source.title, [source.source, f"{source.memory} memory, trainer {source.implementation}"]),
            listing("Not stated by the source, assumed here", source.assumptions),
            rows_table(source) if source.compared else None,
            times_table(source),
        ]
    parts += [memory_table(sources), limits_table(sources), time_table(sources), fitted(sources)]
    parts += [trainers_table(sources), choice_table(sources), goals(sources)]
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
            "yes" if row.time_fitted else "",
        ]
        for row in source.rows
        if row.published_step_s is not None
        and row.predicted_step_s is not None
        and row.time_error is not None
    ]
    if not lines:
        return None
    columns = ["row", "layout", "published", "predicted", "error", "fitted"]
    return table("Seconds a step, published and predicted", columns, lines, left=("row", "layout"))


def _row(row: ComparedRow) -> list[str]:
    published = OUTCOMES[row.outcome] or "-"
    if row.published_bytes is not None:
        published = gib(row.published_bytes)
    error = "" if row.error is None else f"{100 * row.error:+.1f} %"
    batch = f"{row.layout.degrees_text} mbs{row.layout.micro_batch_size}"
    over = "yes" if row.over_limit else ""
    return [row.row, batch, f"{row.seq_len:,}", published, gib(row.predicted_bytes), error, over]


def memory_table(sources: Sequence[ComparedSource]) -> Group | None:
    """One line for each source that publishes memory."""
    found = [(source.name, source.memory_errors) for source in sources]
    return _errors_table("Error of the memory, and the share of runs within 5 and 10 %", found, (5, 10))


def time_table(sources: Sequence[ComparedSource]) -> Group | None:
    """One line for each source that publishes step times."""
    found = [(source.name, source.time_errors) for source in sources]
    return _errors_table("Error of the step time, and the share of runs within 5 and 15 %", found, (5, 15))


def _errors_table(
    title: str, found: Sequence[tuple[str, Errors | None]], limits: Sequence[int]
) -> Group | None:
    lines = []
    for name, errors in found:
        if errors is not None:
            others = "-" if errors.median_of_others is None else percent(errors.median_of_others)
            sizes = [percent(errors.median), others, percent(errors.p90), percent(errors.worst)]
            shares = [f"{100 * errors.share_within[f'{limit / 100:g}']:.0f} %" for limit in limits]
            lines.append([name, str(errors.rows), str(errors.fitted), *sizes, *shares])
    columns = [
        "source",
        "runs",
        "fitted",
        "median",
        "others",
        "p90",
        "worst",
        *(f"{each} %" for each in limits),
    ]
    return table(title, columns, lines, left=("source",)) if lines else None


def fitted(sources: Sequence[ComparedSource]) -> Group | None:
    """What the column says, and which constants were set on each source."""
    by_constants: dict[str, list[str]] = {}
    for source in sources:
        if source.fitted_constants:
            by_constants.setdefault(source.fitted_constants, []).append(source.name)
    lines = [f"{listed(names, 'and')}: {constants}" for constants, names in by_constants.items()]
    return listing("Which constants were fitted", [*FITTED_TERMS, *lines]) if lines else None


def trainers_table(sources: Sequence[ComparedSource]) -> Group | None:
    """The same errors by trainer and device, which is what a plan's notes say of its time."""
    lines = []
    for known in trainer_times(sources):
        whose = [known.trainer, known.device, "yes" if known.fitted else "no"]
        lines.append([*whose, str(known.runs), percent(known.median_error), percent(known.p90_error)])
    columns = ["trainer", "device", "fitted", "runs", "median", "p90"]
    title = "Error of the step time by trainer and device, each run once"
    return table(title, columns, lines, left=("trainer", "device")) if lines else None


def limits_table(sources: Sequence[ComparedSource]) -> Group:
    """How often a run that finished is called too large, and one out of memory is not."""
    lines = []
    for source in sources:
        cells = [source.name]
        for outcomes in (("ran",), ("out_of_memory", "likely_out_of_memory"), ("failed",)):
            over = [row.over_limit for row in source.rows if row.outcome in outcomes]
            cells += [str(len(over)), str(sum(over))] if over else ["-", "-"]
        lines.append(cells)
    columns = ["source", "finished", "over", "out of memory", "over", "failed", "over"]
    return table("Runs, and how many of them are predicted over the memory", columns, lines, left=("source",))


def choice_table(sources: Sequence[ComparedSource]) -> Group | None:
    """One line for each source that ran several layouts of the same job."""
    lines = []
    for source in sources:
        if (of := source.choices) is not None:
            speeds = [percent(of.pick), percent(of.best_of_three), percent(of.of_all_tried)]
            lines.append([source.name, str(of.cells), *speeds, f"{of.rank_correlation:.2f}"])
    if not lines:
        return None
    columns = ["source", "cells", "pick", "best of three", "of all tried", "rank"]
    title = "Choice of the layout: measured speed over that of the best run"
    return group(table(title, columns, lines, left=("source",)), block("", CHOICE_TERMS))


def goals(sources: Sequence[ComparedSource]) -> Group | None:
    """Every goal with what was reached, and why not where it was not."""
    lines = []
    for source in sources:
        lines += [f"{'' if each.met else 'MISSED: '}{source.name}: {_goal(each)}" for each in source.goals]
    missed = sum(not result.met for source in sources for result in source.goals)
    title = "Goals, all met" if not missed else f"Goals: {plural(missed, 'missed goal')}"
    return listing(title, lines, "bold green" if not missed else "bold red")


def _goal(result: GoalResult) -> str:
    goal = result.goal
    shown = "{:.2f}".format if goal.statistic == "rank_correlation" else percent
    text = GOAL_TEXTS[goal.statistic]
    if goal.within is not None:
        text = f"{text} {percent(goal.within)}"
    bound = f"at most {shown(goal.at_most)}" if goal.at_most is not None else ""
    if goal.at_least is not None:
        bound = f"at least {shown(goal.at_least)}"
    if goal.below_nodes is not None:
        bound += f"; runs below {goal.below_nodes} nodes"
    why = f"; {goal.unmet_because}" if goal.unmet_because and not result.met else ""
    return f"{text}: {shown(result.value)} ({bound}){why}"
