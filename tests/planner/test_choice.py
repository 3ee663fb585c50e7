"""Choosing among all that was tried, finished or not; constants shown on what they were not fitted on."""

from __future__ import annotations

import dataclasses
import statistics

import pytest

from seqplan import cli_inputs, profiles
from seqplan.planner.implementation import ImplementationSpec
from seqplan.planner.measured.compared_row import ComparedRow
from seqplan.planner.measured.published_comparison import ComparedSource, compare
from seqplan.planner.measured.published_figures import reached
from seqplan.planner.measured.published_ranking import choice_throughput
from seqplan.planner.reading.quantity import Quantity

CLOSE = 0.03
"""How much worse the choice from all that was tried may be than that among the runs that finished."""
EXACT = 1e-12


def source(name: str) -> ComparedSource:
    return compare(profiles.load_published(name), cli_inputs.loaders())


def test_a_failed_pick_counts_as_nothing() -> None:
    # (predicted, published seconds a step): the best took 2 s; the picks failed, took 4 s, took 2 s.
    failed: list[tuple[float, float | None]] = [(1.0, None), (2.0, 2.0)]
    slower: list[tuple[float, float | None]] = [(1.0, 4.0), (2.0, 2.0), (3.0, None)]
    assert choice_throughput([failed]) == 0.0
    assert choice_throughput([slower]) == pytest.approx(0.5, rel=EXACT)
    assert choice_throughput([failed, slower, slower[1:]]) == pytest.approx(0.5, rel=EXACT)


def without_memory_pressure(name: str) -> ImplementationSpec:
    """A trainer that runs as fast with its memory full."""
    trainer = profiles.load_implementation(name)
    free = trainer.time.model_copy(update={"memory_pressure_factor": Quantity(1.0, "switched off")})
    return trainer.model_copy(update={"time": free})


def test_choosing_from_all_that_was_tried() -> None:
    """Three whole cells: 177 runs that finished, 131 that did not."""
    rows = list(source("nanotron-cells").rows)
    assert sum(row.outcome == "ran" for row in rows) == 177
    assert sum(row.outcome == "failed" for row in rows) == 131
    among_finished = reached(rows, "pick_throughput", None)
    assert reached(rows, "choice_throughput", None) >= among_finished - CLOSE
    assert among_finished >= 0.88
    # What keeps the choice off the runs that failed with their memory all but full is a cost of the trainer.
    full = compare(
        profiles.load_published("nanotron-cells"),
        dataclasses.replace(cli_inputs.loaders(), implementation=without_memory_pressure),
    )
    assert reached(list(full.rows), "choice_throughput", None) < among_finished - CLOSE


def test_the_sweep_on_both_halves() -> None:
    """One calibration of trainer and device, fitted on half of the cells: what each half reaches."""
    rows = [row for row in source("nanotron-sweep").rows if row.nodes < 64]
    # The fitted cells: every second below 64 nodes, by the source's names in order.
    timed = [row for row in rows if row.time_error is not None]
    cells = sorted({(row.group, row.layout.world_size) for row in timed})
    fitted = {(row.group, row.layout.world_size) for row in timed if row.time_fitted}
    assert len(fitted) in (len(cells) // 2, -(-len(cells) // 2))
    halves: dict[bool, list[ComparedRow]] = {False: [], True: []}
    for row in rows:
        halves[(row.group, row.layout.world_size) in fitted].append(row)
    for shown in halves.values():
        assert len(shown) > 100
        assert reached(shown, "rank_correlation", None) >= 0.8
        assert reached(shown, "pick_throughput", None) >= 0.88
        assert reached(shown, "best_of_three_throughput", None) >= 0.95


@pytest.mark.parametrize(
    ("name", "most"),
    # Goals of the medians.
    [("vtrain", 0.08), ("narayanan", 0.08), ("activation-recomputation", 0.08), ("nvidia-performance", 0.15)],
)
def test_step_times_on_both_halves(name: str, most: float) -> None:
    timed = [row for row in source(name).rows if row.time_error is not None]
    halves: dict[bool, list[float]] = {False: [], True: []}
    for row in timed:
        halves[row.time_fitted].append(abs(row.time_error or 0.0))
    assert abs(len(halves[True]) - len(halves[False])) <= 1
    for half in halves.values():
        assert statistics.median(half) <= most
