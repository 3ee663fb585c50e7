"""Step times beside published ones: the arithmetic, the winners of the paper, halves that were not fitted."""

from __future__ import annotations

import statistics

import pytest

from seqplan import cli_inputs, profiles
from seqplan.planner.measured.compared_row import ComparedRow
from seqplan.planner.measured.published_comparison import ComparedSource, compare
from seqplan.planner.measured.published_figures import reached
from seqplan.planner.measured.published_ranking import pick_throughput, rank_correlation, spearman

EXACT = 1e-12


def test_ranks_and_picks_by_hand() -> None:
    # Predicted and published seconds: the pick took 2 s, the second 1 s, the third 4 s.
    cell = [(1.0, 2.0), (2.0, 1.0), (3.0, 4.0)]
    assert spearman(cell) == pytest.approx(0.5, rel=EXACT)  # 1 - 6 x 2 / (3 x 8)
    assert pick_throughput([cell], 1) == pytest.approx(0.5, rel=EXACT)
    assert pick_throughput([cell], 2) == 1.0
    right = [(1.0, 1.0), (2.0, 5.0), (9.0, 7.0)]
    assert rank_correlation([cell, right, right]) == pytest.approx(1.0, rel=EXACT)
    assert pick_throughput([cell, right], 1) == pytest.approx(0.75, rel=EXACT)
    # Equal values share their ranks.
    assert spearman([(1.0, 1.0), (1.0, 2.0), (2.0, 3.0)]) == pytest.approx(0.8660254, rel=1e-6)


@pytest.fixture(scope="module")
def sources() -> dict[str, ComparedSource]:
    names = ("ring-self-attention", "nanotron-sweep", "simumax-b200", "narayanan")
    return {name: compare(profiles.load_published(name), cli_inputs.loaders()) for name in names}


def test_a_rate_and_a_step_time_say_the_same(sources: dict[str, ComparedSource]) -> None:
    row = sources["ring-self-attention"].rows[0]
    # Table 4: 64 sequences of 512 tokens at 9,946.15 tokens/s.
    assert row.published_step_s == pytest.approx(64 * 512 / 9946.15, rel=EXACT)
    sweep = sources["nanotron-sweep"].rows[0]
    assert sweep.published_step_s == pytest.approx(256 * 4096 / (40150 * 8), rel=EXACT)


def test_the_winners_of_the_paper_are_ours(sources: dict[str, ComparedSource]) -> None:
    """Table 4: tp or the paper's sequence parallelism on as many devices; where both ran."""
    rows: dict[tuple[str, str], ComparedRow] = {}
    for row in sources["ring-self-attention"].rows:
        rows[row.group, row.row] = row
    right = asked = 0
    for (group, name), tensor in rows.items():
        if not name.startswith("tp") or tensor.published_step_s is None:
            continue
        ring = rows[group, name.replace("tp", "sp")]
        assert tensor.predicted_step_s is not None
        assert ring.predicted_step_s is not None
        assert ring.published_step_s is not None
        asked += 1
        right += (tensor.predicted_step_s < ring.predicted_step_s) == (
            tensor.published_step_s < ring.published_step_s
        )
    assert asked == 7
    assert right >= 6


def test_cells_that_were_not_fitted(sources: dict[str, ComparedSource]) -> None:
    """Every second cell below 64 nodes was fitted, by the source's names in order; these are the others."""
    others = {("1.3B", 32), ("3.6B", 16), ("3.6B", 64), ("8.9B", 32), ("80B", 64)}
    rows = sources["nanotron-sweep"].rows
    shown = [row for row in rows if (row.group.split()[-1], row.layout.world_size) in others]
    assert len(shown) > 60
    assert not any(row.time_fitted for row in shown)
    assert reached(shown, "rank_correlation", None) >= 0.8
    assert reached(shown, "pick_throughput", None) >= 0.88
    assert reached(shown, "best_of_three_throughput", None) >= 0.95
    assert reached(shown, "median_time_error", None) <= 0.12


def test_rows_of_simumax_that_were_not_fitted(sources: dict[str, ComparedSource]) -> None:
    # B200 was fitted on every second row.
    rows = [row for row in sources["simumax-b200"].rows if not row.time_fitted]
    errors = [abs(row.time_error) for row in rows if row.time_error is not None]
    assert len(errors) == 8
    assert statistics.median(errors) <= 0.08
    ring = [row for row in sources["simumax-b200"].rows if row.layout.sp > 1]
    assert max(abs(row.time_error or 1.0) for row in ring) <= 0.12
