"""What rows of a publication say together, by hand: errors, shares, goals, and which rows set constants."""

from __future__ import annotations

import json
from typing import Any

import pytest

from seqplan.planner.measured.compared_row import ComparedRow
from seqplan.planner.measured.published import FittedOn, Goal
from seqplan.planner.measured.published_figures import memory_errors, reached, time_errors

EXACT = 1e-12
"""Relative: the same sums in another order."""


def row_of(**changes: Any) -> ComparedRow:
    fields: dict[str, Any] = {
        "row": "1",
        "group": "g",
        "layout": {"dp": 1, "pp": 1, "tp": 1, "sp": 1, "micro_batch_size": 1, "precision": "bf16"},
        "seq_len": 8,
        "outcome": "ran",
        "published_bytes": 1.0,
        "predicted_bytes": 1.0,
        "error": 0.0,
        "peak_bytes": 1.0,
        "limit_bytes": 2.0,
        "over_limit": False,
    }
    fields["layout"]["stage_layers"] = [1]
    return ComparedRow.model_validate_json(json.dumps({**fields, **changes}))


def test_statistics_count_what_they_say() -> None:
    rows = [
        row_of(error=-0.10),
        row_of(error=0.02, over_limit=True),
        row_of(error=0.30),
        row_of(error=None, published_bytes=None, outcome="out_of_memory", over_limit=True),
        row_of(error=None, published_bytes=None, outcome="likely_out_of_memory"),
    ]
    assert reached(rows, "median_error", None) == pytest.approx(0.10, rel=EXACT)
    assert reached(rows, "mean_error", None) == pytest.approx(0.14, rel=EXACT)
    assert reached(rows, "worst_error", None) == pytest.approx(0.30, rel=EXACT)
    assert reached(rows, "share_within", 0.1) == pytest.approx(2 / 3, rel=EXACT)
    assert reached(rows, "out_of_memory_share", None) == pytest.approx(0.5, rel=EXACT)
    assert reached(rows, "finished_over_limit_share", None) == pytest.approx(1 / 3, rel=EXACT)


def test_figures_of_errors_by_hand() -> None:
    rows = [row_of(time_error=error, time_fitted=error > 0) for error in (-0.30, 0.05, 0.10, -0.20)]
    found = time_errors([*rows, row_of(time_error=None)])
    assert found is not None
    assert (found.rows, found.fitted) == (4, 2)
    assert found.median == pytest.approx(0.15, rel=EXACT)
    assert found.median_of_others == pytest.approx(0.25, rel=EXACT)
    assert (found.p90, found.worst) == (0.30, 0.30)
    assert found.share_within == {"0.05": 0.25, "0.1": 0.5, "0.15": 0.5, "0.2": 0.75}
    ten = memory_errors([row_of(error=number / 100, memory_fitted=True) for number in range(1, 11)])
    assert ten is not None
    assert (ten.p90, ten.median_of_others) == (0.09, None)
    assert time_errors([row_of()]) is None


def test_which_rows_set_constants() -> None:
    by_place = FittedOn(step_times="odd")
    assert [by_place.has_time_of(place, "a", "g", 8) for place in (1, 2, 3)] == [True, False, True]
    by_cell = FittedOn(cells={"g": (8,)}, rows=("b",))
    asked = [("a", "g", 8), ("a", "g", 16), ("a", "other", 8), ("b", "other", 16)]
    assert [by_cell.has_time_of(1, *each) for each in asked] == [True, False, False, True]


def test_goals_hold_up_to_their_bound() -> None:
    most = Goal(statistic="worst_error", at_most=0.02)
    least = Goal(statistic="share_within", within=0.15, at_least=0.9)
    assert (most.holds(0.02), most.holds(0.0201)) == (True, False)
    assert (least.holds(0.9), least.holds(0.899)) == (True, False)
