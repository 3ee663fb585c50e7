"""Orders of computations of every schedule: complete, playable to the end, as much in flight as published."""

from __future__ import annotations

from collections import Counter

import pytest

from seqplan.planner.schedule_orders import (
    SPLIT_BACKWARD,
    Step,
    chunks_per_stage,
    depth,
    most_in_flight,
    order,
)

SCHEDULES = [
    ("gpipe", 1),
    ("1f1b", 1),
    ("interleaved", 2),
    ("interleaved", 3),
    *((s, 1) for s in SPLIT_BACKWARD),
]


def finishes(orders: list[list[Step]], schedule: str, chunks: int) -> bool:
    """Whether every stage can do its steps in order, each when the chunks before (or behind) it have."""
    p = len(orders)
    last = p * chunks - 1
    at, done = [0] * p, set()
    moved = True
    while moved:
        moved = False
        for stage, steps in enumerate(orders):
            while at[stage] < len(steps):
                step = steps[at[stage]]
                here = depth(schedule, stage, step.chunk, p)
                if step.kind == "forward":
                    needs = [("forward", step.micro_batch, here - 1)] if here else []
                    made = "forward"
                elif step.kind == "weight_gradient":
                    needs, made = [("backward", step.micro_batch, here)], "weight_gradient"
                else:
                    needs = [("forward", step.micro_batch, here)]
                    needs += [("backward", step.micro_batch, here + 1)] if here < last else []
                    made = "backward"
                if not all(need in done for need in needs):
                    break
                done.add((made, step.micro_batch, here))
                at[stage] += 1
                moved = True
    return all(place == len(steps) for place, steps in zip(at, orders, strict=True))


@pytest.mark.parametrize(("schedule", "virtual"), SCHEDULES)
def test_everything_is_computed_once_and_nothing_waits_for_ever(schedule: str, virtual: int) -> None:
    chunks = chunks_per_stage(schedule, virtual)
    kinds = {"forward", "input_gradient", "weight_gradient"}
    kinds = kinds if schedule in SPLIT_BACKWARD else {"forward", "backward"}
    for p in (1, 2, 3, 4, 8):
        for m in (1, 2, 3, p, p + 1, 2 * p - 1, 2 * p, 3 * p + 2):
            orders = [order(schedule, stage, p, m, chunks) for stage in range(p)]
            expected = {(kind, i, chunk): 1 for kind in kinds for i in range(m) for chunk in range(chunks)}
            assert all(Counter(map(tuple, steps)) == expected for steps in orders), (p, m)
            assert finishes(orders, schedule, chunks), (p, m)


def test_a_wrong_order_is_seen_to_dead_lock() -> None:
    orders = [order("zbh1", stage, 2, 2) for stage in range(2)]
    assert not finishes([orders[0][::-1], orders[1]], "zbh1", 1)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_in_flight_as_published(p: int) -> None:
    # Qi et al. 2401.10241, table 2: 1F1B and ZB-H1 p micro-batches, ZB-H2 2 p - 1, and section 6: ZB-V 2 p
    # chunks of half a stage, on every stage alike; 1F1B p - i on stage i.
    m = 4 * p

    def held(schedule: str, chunks: int = 1) -> list[int]:
        return [most_in_flight(order(schedule, stage, p, m, chunks)) for stage in range(p)]

    assert held("1f1b") == [p - stage for stage in range(p)]
    assert held("zbh1") == [p] * p
    assert held("zbh2") == [2 * p - 1] * p
    assert held("zbv", 2) == [2 * p] * p
    assert held("gpipe") == [m] * p


def test_a_v_goes_down_and_up() -> None:
    assert [depth("zbv", stage, 0, 4) for stage in range(4)] == [0, 1, 2, 3]
    assert [depth("zbv", stage, 1, 4) for stage in range(4)] == [7, 6, 5, 4]
    assert [depth("interleaved", stage, 1, 4) for stage in range(4)] == [4, 5, 6, 7]
