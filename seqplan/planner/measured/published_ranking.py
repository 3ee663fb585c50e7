"""How well predictions rank the layouts of a cell: a model on a number of devices, run in several layouts.

A cell is a list of (predicted, published) seconds a step. What counts is the choice: what the layouts that we
would try first really did.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

Cell = Sequence[tuple[float, float]]


def rank_correlation(cells: Sequence[Cell]) -> float:
    """Spearman's correlation of predicted and published, the median over cells."""
    return statistics.median(spearman(cell) for cell in cells)


def pick_throughput(cells: Sequence[Cell], tried: int) -> float:
    """The best throughput that the `tried` layouts predicted fastest had, over the best; mean of cells."""
    shares = []
    for cell in cells:
        fastest = sorted(cell)[:tried]
        shares.append(min(took for _, took in cell) / min(took for _, took in fastest))
    return statistics.fmean(shares)


def choice_throughput(cells: Sequence[Sequence[tuple[float, float | None]]]) -> float:
    """The same of the fastest predicted layout where some did not finish (None): such a pick counts as 0."""
    shares = []
    for cell in cells:
        took = min(cell, key=lambda each: each[0])[1]
        best = min(seconds for _, seconds in cell if seconds is not None)
        shares.append(0.0 if took is None else best / took)
    return statistics.fmean(shares)


def spearman(cell: Cell) -> float:
    """Correlation of the ranks; equal values share the mean of their ranks."""
    predicted, published = _ranks([each for each, _ in cell]), _ranks([each for _, each in cell])
    return statistics.correlation(predicted, published)


def _ranks(values: list[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(each) + (ordered.count(each) - 1) / 2 for each in values]
