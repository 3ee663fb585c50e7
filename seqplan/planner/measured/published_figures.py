"""What rows say together: errors of memory and of step times, and how good the choice of a layout is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from pydantic import Field

from seqplan.planner.measured.compared_row import Cell, ComparedRow
from seqplan.planner.measured.published import Statistic
from seqplan.planner.measured.published_ranking import choice_throughput, pick_throughput, rank_correlation
from seqplan.planner.spec import Spec

SHARES = (0.05, 0.10, 0.15, 0.20)
"""Errors within which the share of rows is reported."""

FEWEST_RUNS = 3
"""Finished runs of one model on one number of devices from which layouts can be ranked."""


class Errors(Spec):
    """Errors of the memory, or of the step time, of some rows; sizes, whatever their sign."""

    rows: int
    fitted: int = Field(description="of these rows: constants that predict them were set on them")
    mean: float
    median: float
    median_of_others: float | None = Field(description="of the rows that set no constant; null: all did")
    p90: float = Field(description="nine of ten rows have no larger one")
    worst: float
    share_within: dict[str, float] = Field(description="share of the rows by largest error")


class Choices(Spec):
    """How good the choice is: the throughput of what is predicted fastest over the best that was measured."""

    cells: int = Field(description="a model on a number of devices with three finished runs or more")
    rank_correlation: float = Field(description="Spearman's, of predicted and measured: median of the cells")
    pick: float = Field(description="the layout predicted fastest of those that finished: mean of the cells")
    best_of_three: float = Field(description="the best of the three predicted fastest: mean of the cells")
    of_all_tried: float = Field(
        description="the layout predicted fastest of all that were tried, are legal and predicted to fit: "
        "mean of the cells; one that failed counts as 0"
    )


def memory_errors(rows: Sequence[ComparedRow]) -> Errors | None:
    """None where no memory was published."""
    return _errors([(row.error, row.memory_fitted) for row in rows])


def time_errors(rows: Sequence[ComparedRow]) -> Errors | None:
    """None where no step time was published."""
    return _errors([(row.time_error, row.time_fitted) for row in rows])


def _errors(signed: Sequence[tuple[float | None, bool]]) -> Errors | None:
    known = [(abs(error), fitted) for error, fitted in signed if error is not None]
    if not known:
        return None
    sizes = sorted(size for size, _ in known)
    others = [size for size, fitted in known if not fitted]
    return Errors(
        rows=len(known),
        fitted=len(known) - len(others),
        mean=statistics.fmean(sizes),
        median=statistics.median(sizes),
        median_of_others=statistics.median(others) if others else None,
        p90=sizes[math.ceil(0.9 * len(sizes)) - 1],
        worst=sizes[-1],
        share_within={f"{limit:g}": share(sizes, limit) for limit in SHARES},
    )


def choices(rows: Sequence[ComparedRow]) -> Choices | None:
    """None where no model has runs enough on any number of devices."""
    finished = cells(rows)
    if not finished:
        return None
    return Choices(
        cells=len(finished),
        rank_correlation=rank_correlation(finished),
        pick=pick_throughput(finished, 1),
        best_of_three=pick_throughput(finished, 3),
        of_all_tried=choice_throughput(tried_cells(rows)),
    )


def reached(rows: Sequence[ComparedRow], statistic: Statistic, within: float | None) -> float:
    """A statistic over rows; an assertion fails where no row counts for it."""
    errors = [abs(row.error) for row in rows if row.error is not None]
    over = [row.over_limit for row in rows if row.outcome != "ran"]
    finished = [row.over_limit for row in rows if row.outcome == "ran"]
    seconds = [abs(row.time_error) for row in rows if row.time_error is not None]
    counted: dict[Statistic, Callable[[], float]] = {
        "median_time_error": lambda: statistics.median(seconds),
        "worst_time_error": lambda: max(seconds),
        "time_share_within": lambda: share(seconds, within or 0.0),
        "rank_correlation": lambda: rank_correlation(cells(rows)),
        "pick_throughput": lambda: pick_throughput(cells(rows), 1),
        "best_of_three_throughput": lambda: pick_throughput(cells(rows), 3),
        "choice_throughput": lambda: choice_throughput(tried_cells(rows)),
        "median_error": lambda: statistics.median(errors),
        "mean_error": lambda: statistics.fmean(errors),
        "worst_error": lambda: max(errors),
        "share_within": lambda: share(errors, within or 0.0),
        "out_of_memory_share": lambda: sum(over) / len(over),
        "finished_over_limit_share": lambda: sum(finished) / len(finished),
    }
    return counted[statistic]()


def cells(rows: Sequence[ComparedRow]) -> list[list[tuple[float, float]]]:
    """(predicted, published) seconds a step of every cell with enough finished runs."""
    found: dict[Cell, list[tuple[float, float]]] = {}
    for row in rows:
        if row.published_step_s is not None and row.predicted_step_s is not None:
            found.setdefault(row.cell, []).append((row.predicted_step_s, row.published_step_s))
    return [cell for cell in found.values() if len(cell) >= FEWEST_RUNS]


def tried_cells(rows: Sequence[ComparedRow]) -> list[list[tuple[float, float | None]]]:
    """The same cells with all that were tried and that we call legal and fitting; None: it did not finish."""
    ranked = {row.cell for row in rows if row.published_step_s is not None}
    tried: dict[Cell, list[tuple[float, float | None]]] = {cell: [] for cell in sorted(ranked)}
    for row in rows:
        if row.cell in tried and row.runnable and not row.over_limit:
            tried[row.cell].append((row.estimated_step_s, row.published_step_s))
    finished = {cell: sum(took is not None for _, took in of) for cell, of in tried.items()}
    return [of for cell, of in tried.items() if finished[cell] >= FEWEST_RUNS]


def share(errors: Sequence[float], limit: float) -> float:
    return sum(error <= limit for error in errors) / len(errors)
