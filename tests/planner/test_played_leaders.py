"""The leaders of a search in the order of their event simulation, and what is said where it differs."""

from __future__ import annotations

from typing import Any

import pytest

from seqplan.planner.choosing import sensitivity as sensitivity_module
from seqplan.planner.choosing.layout_table import from_layout
from seqplan.planner.choosing.played_leaders import REACH, played_leaders, told
from seqplan.planner.choosing.sensitivity import sensitivity
from seqplan.planner.question import Pins, Question
from seqplan.planner.search import score, suggest
from seqplan.planner.time_model import time_table
from tests.planner.formula_cases import layout, our_trainer
from tests.planner.samples import cluster, decoder, number, question

EXACT = 1e-9
UNEVEN: dict[str, Any] = {"stage_layers": (4, 4, 3, 1)}


def asked_of(gpus: int = 8, **changes: Any) -> Question:
    where = cluster(gpus_per_node=2, num_nodes=8)
    return question(decoder(num_layers=12), gpus, where=where, implementation=our_trainer(), **changes)


def closed_form_s(asked: Question, chosen: object) -> float:
    return float(time_table(asked, from_layout(chosen, asked.train)).step_time_s[0])  # type: ignore[arg-type]


def test_the_shown_are_sorted_by_what_score_says_of_each() -> None:
    asked = asked_of()
    answer = suggest(asked, Pins(pp=4), top=8)
    times = [one.time.step_time_s for one in answer.ranked if one.time is not None]
    assert times == sorted(times)
    assert times == [score(asked, one.layout).time.step_time_s for one in answer.ranked]  # type: ignore[union-attr]
    assert answer.event_simulation is not None
    assert answer.event_simulation.played >= len(times)
    assert any("played event by event" in note for note in answer.notes)


def test_where_the_two_differ_the_simulation_decides() -> None:
    """ZB-H2 with fewer micro-batches than it needs: its closed form is too short, 1F1B's is exact."""
    asked = asked_of(global_batch_size=4)
    zero_bubble, plain = (layout(asked, pp=4, tp=2, schedule=name, **UNEVEN) for name in ("zbh2", "1f1b"))
    found = [zero_bubble, plain]
    leaders = played_leaders(asked, found, 2)
    by_layout = dict(zip(leaders.layouts, leaders.played_s, strict=True))
    for each in found:
        time = score(asked, each).time
        assert time is not None
        assert by_layout[each] == pytest.approx(time.step_time_s, rel=EXACT)
    assert by_layout[plain] == pytest.approx(closed_form_s(asked, plain), rel=0.01)
    assert by_layout[zero_bubble] > 1.01 * closed_form_s(asked, zero_bubble)
    assert leaders.played_s == sorted(leaders.played_s)
    summary = told(found, leaders)
    assert summary is not None
    assert summary.differ >= 1
    assert f"by {100 * summary.largest_difference:.1f} % at most" in summary.text


def test_without_a_pipeline_nothing_is_played() -> None:
    asked = asked_of()
    answer = suggest(asked, Pins(pp=1))
    assert answer.event_simulation is None
    assert not any("event" in note for note in answer.notes)


def test_what_cannot_come_first_is_not_played() -> None:
    asked = asked_of()
    fast, slow = layout(asked, pp=4, tp=2), layout(asked, pp=4, tp=2, recompute="full")
    assert closed_form_s(asked, slow) > REACH * closed_form_s(asked, fast)
    assert played_leaders(asked, [fast, slow], 1).played == 1
    assert played_leaders(asked, [fast, slow], 2).played == 2


def test_sensitivity_keeps_the_simulations_correction(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader whose closed form is shorter than the pick's does not win by that alone."""
    monkeypatch.setattr(sensitivity_module, "SMALL", 100.0)
    asked = asked_of()
    first, second = layout(asked, pp=4, tp=2), layout(asked, pp=2, tp=4)
    if closed_form_s(asked, first) > closed_form_s(asked, second):
        first, second = second, first
    assert sensitivity(asked, [second, first]).verdict == "close call"
    much = 10 * closed_form_s(asked, second) / closed_form_s(asked, first)
    assert sensitivity(asked, [second, first], [1.0, much]).verdict == "stable"


def test_sensitivity_plays_again_what_was_far_from_its_closed_form() -> None:
    """What such a leader gains under a change is what `score` says of both under it."""
    asked = asked_of(global_batch_size=4)
    zero_bubble, plain = (layout(asked, pp=4, tp=2, schedule=name, **UNEVEN) for name in ("zbh2", "1f1b"))
    leaders = played_leaders(asked, [zero_bubble, plain], 2)
    assert max(abs(each - 1) for each in leaders.corrections) > sensitivity_module.SMALL
    pair = leaders.layouts[::-1]
    found = sensitivity(asked, pair, leaders.corrections[::-1])
    change = next(each for each in found.changes if (each.rate, each.factor) == ("devices' matmuls", 0.8))
    device = asked.cluster.device
    peaks = {name: number(0.8 * float(rate)) for name, rate in device.peak_flops_per_s.items()}
    slower = asked.cluster.model_copy(
        update={"device": device.model_copy(update={"peak_flops_per_s": peaks})}
    )
    steps = [score(asked.model_copy(update={"cluster": slower}), each).time for each in pair]
    times = [step.step_time_s for step in steps if step is not None]
    assert change.gain_fraction == pytest.approx(1 - times[1] / times[0], rel=1e-6)


def test_of_splits_that_differ_in_nothing_else_the_first_stands_for_all() -> None:
    asked = asked_of()
    even, uneven = (layout(asked, pp=2, tp=4, stage_layers=split) for split in ((6, 6), (7, 5)))
    other = layout(asked, pp=2, tp=4, micro_batch_size=2, stage_layers=(7, 5))
    leaders = played_leaders(asked, [even, uneven, other], 3)
    kept = leaders.of_one_split()
    places = [leaders.layouts.index(each) for each in kept.layouts]
    assert len(kept.layouts) == 2
    assert other in kept.layouts
    assert min(leaders.layouts.index(even), leaders.layouts.index(uneven)) in places
    assert kept.played_s == [leaders.played_s[place] for place in places]
    assert kept.closed_form_s == [leaders.closed_form_s[place] for place in places]
