"""The pipeline played event by event: known schedules, and the closed form held against it."""

from __future__ import annotations

import json

import pytest

from seqplan.planner.timing.event_simulation import StageDurations, chrome_trace, makespan_s, simulate
from seqplan.planner.timing.pipeline_time import pipeline_s

AGREEMENT = 0.02
"""Relative: how far the closed form may be from the simulation."""
EXACT = 1e-9


def stages(*scale: float) -> list[StageDurations]:
    """Stages whose backward takes twice the forward."""
    return [StageDurations(each, 2.0 * each) for each in scale]


def closed_form(schedule: str, chunks: int, microbatches: int, of: list[StageDurations], hop: float) -> float:
    """As time_model.py asks: what 1F1B sends is part of its passes, what the interleaved sends is hidden."""
    last = len(of) - 1
    alike: dict[tuple[float, ...], tuple[float, float]] = {}
    passes = []
    for place, each in enumerate(of):
        boundaries = (place > 0) + (place < last)
        sent = 0.0 if schedule == "interleaved" else 0.5 * hop * boundaries
        key = (each.forward_s, each.backward_s, boundaries)
        passes.append(alike.setdefault(key, (each.forward_s + sent, each.backward_s + sent)))
    hidden = hop if schedule == "interleaved" else 0.0
    return float(pipeline_s(schedule, chunks, microbatches, passes, hidden))


@pytest.mark.parametrize(("pp", "microbatches"), [(1, 3), (2, 2), (4, 8), (8, 8), (4, 2)])
def test_equal_stages_take_the_textbooks_time(pp: int, microbatches: int) -> None:
    # (m + p - 1) x (f + b), for 1F1B and gpipe alike.
    for schedule in ("1f1b", "gpipe"):
        found = makespan_s(simulate(schedule, stages(*[1.0] * pp), microbatches))
        assert found == pytest.approx(3.0 * (microbatches + pp - 1), rel=EXACT)


def test_interleaving_divides_the_waiting() -> None:
    # Narayanan et al. 2104.04473, 2.2: (p - 1) / v of a micro-batch's passes.
    for chunks in (2, 4):
        found = makespan_s(simulate("interleaved", stages(*[1.0] * 4), 8, chunks=chunks))
        assert found == pytest.approx(3.0 * (8 + 3 / chunks), rel=EXACT)


def test_every_computation_happens_once_and_in_order() -> None:
    events = simulate("interleaved", stages(1.0, 1.0), 4, hop_s=0.1, chunks=2)
    made = [(e.stage, e.kind, e.micro_batch, e.chunk) for e in events]
    assert len(made) == len(set(made)) == 2 * 2 * 4 * 2
    ends = {(e.stage, e.kind, e.micro_batch, e.chunk): e.end_s for e in events}
    starts = {(e.stage, e.kind, e.micro_batch, e.chunk): e.start_s for e in events}
    for micro_batch in range(4):
        assert starts[1, "forward", micro_batch, 0] >= ends[0, "forward", micro_batch, 0] + 0.1 - EXACT
        assert starts[0, "forward", micro_batch, 1] >= ends[1, "forward", micro_batch, 0] + 0.1 - EXACT
        assert starts[1, "backward", micro_batch, 1] >= ends[1, "forward", micro_batch, 1] - EXACT


SHAPES: dict[str, list[float]] = {
    "even": [1.0] * 4,
    "slow last": [1.0, 1.0, 1.0, 1.3],
    "fast last": [1.0, 1.0, 1.0, 0.5],
    "fast first": [0.8, 1.0, 1.0, 1.0],
    "slow middle": [1.0, 1.0, 1.25, 1.0],
    "both ends": [1.1, 1.0, 1.0, 1.4],
    "eight, slow middle": [1.0] * 4 + [1.25] + [1.0] * 3,
    # A fall to half over as many micro-batches as stages is where the closed form is worst: 2.5 %.
    "eight, falling": [1.2, 1.15, 1.1, 1.05, 1.0, 0.95, 0.9, 0.85],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("microbatches", [1, 2, 4, 8, 16, 64])
@pytest.mark.parametrize("hop", [0.0, 0.05])
def test_the_closed_form_of_1f1b_agrees(shape: str, microbatches: int, hop: float) -> None:
    of = stages(*SHAPES[shape])
    played = makespan_s(simulate("1f1b", of, microbatches, hop))
    assert closed_form("1f1b", 1, microbatches, of, hop) == pytest.approx(played, rel=AGREEMENT)


@pytest.mark.parametrize("shape", ["even", "slow last", "fast first", "both ends"])
@pytest.mark.parametrize(("microbatches", "chunks"), [(8, 2), (16, 2), (16, 4), (64, 4)])
@pytest.mark.parametrize("hop", [0.0, 0.01])
def test_the_closed_form_of_interleaving_agrees(
    shape: str, microbatches: int, chunks: int, hop: float
) -> None:
    of = stages(*SHAPES[shape])
    played = makespan_s(simulate("interleaved", of, microbatches, hop, chunks))
    assert closed_form("interleaved", chunks, microbatches, of, hop) == pytest.approx(played, rel=AGREEMENT)


def test_zero_bubbles_need_micro_batches() -> None:
    # Equal thirds F, B, W of 1 s on 4 stages: 2 p micro-batches fill everything (Qi et al. 2401.10241); one
    # alone passes 4 stages forth and back, and then its weight gradient is due.
    passes = [(1.0, 2.0)] * 4
    assert float(pipeline_s("zbv", 1, 8, passes)) == pytest.approx(24.0, rel=EXACT)
    assert float(pipeline_s("zbv", 1, 1, passes)) == pytest.approx(4 * 2 + 1, rel=EXACT)


def test_the_timeline_is_chrome_trace_json() -> None:
    events = simulate("1f1b", stages(1.0, 1.0), 2, hop_s=0.1)
    trace = json.loads(chrome_trace(events))["traceEvents"]
    spans = [each for each in trace if each["ph"] == "X"]
    assert len(spans) == len(events)
    assert {each["tid"] for each in spans} == {0, 1}
    assert max(each["ts"] + each["dur"] for each in spans) == pytest.approx(makespan_s(events) * 1e6)
    assert [each["args"]["name"] for each in trace if each["ph"] == "M"] == ["stage 0", "stage 1"]
