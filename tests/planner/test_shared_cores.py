"""Pipelines on fewer cores than stages, against a simulation that hands the cores out moment by moment."""

from __future__ import annotations

import pytest

from seqplan.planner.schedule import computations
from seqplan.planner.timing.shared_cores import on_shared_cores_s

TOLERANCE = 0.06
"""The formula counts in rounds of the whole pipeline; the simulation knows forwards from backwards."""


def simulated_s(stage_s: list[float], microbatches: int, cores: int) -> float:
    """1F1B, forward and backward equally long: whoever can work shares the cores, at most one each."""
    stages = len(stage_s)
    todo = [
        [(each.kind, each.micro_batch) for each in computations(stage, stages, microbatches)]
        for stage in range(stages)
    ]
    done: set[tuple[str, int, int]] = set()
    left = [each / 2 for each in stage_s]
    now = 0.0
    while any(todo):
        able = [
            stage for stage in range(stages) if todo[stage] and ready(stage, *todo[stage][0], stages, done)
        ]
        rate = min(1.0, cores / len(able))
        step = min(left[stage] for stage in able) / rate
        now += step
        for stage in able:
            left[stage] -= rate * step
            if left[stage] < 1e-12:
                done.add((todo[stage][0][0], stage, todo[stage][0][1]))
                todo[stage].pop(0)
                left[stage] = stage_s[stage] / 2
    return now


def ready(stage: int, kind: str, index: int, stages: int, done: set[tuple[str, int, int]]) -> bool:
    if kind == "forward":
        return stage == 0 or ("forward", stage - 1, index) in done
    return ("forward", stage, index) in done and (
        stage == stages - 1 or ("backward", stage + 1, index) in done
    )


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("microbatches", [1, 2, 4, 8, 32])
@pytest.mark.parametrize("cores", [1, 2, 3])
def test_waiting_stages_leave_their_core(stages: int, microbatches: int, cores: int) -> None:
    share = min(1.0, cores / stages)
    at_share = 1.0 / share
    whole = (microbatches + stages - 1) * at_share
    found = on_shared_cores_s(whole, at_share, share, stages, microbatches)
    assert found == pytest.approx(simulated_s([1.0] * stages, microbatches, cores), rel=TOLERANCE)


def test_a_core_each_is_the_pipeline_itself() -> None:
    assert on_shared_cores_s(7.0, 1.0, 1.0, 4, 4) == 7.0


def test_one_stage_has_its_share() -> None:
    assert on_shared_cores_s(8.0, 2.0, 0.5, 1, 4) == pytest.approx(8.0)


def test_unequal_stages_on_one_core_take_what_their_work_takes() -> None:
    at_full_speed = simulated_s([1.5, 0.5], 4, cores=2)
    found = on_shared_cores_s(at_full_speed / 0.5, 2.0, 0.5, 2, 4)
    assert found == pytest.approx(simulated_s([1.5, 0.5], 4, cores=1), rel=TOLERANCE)
