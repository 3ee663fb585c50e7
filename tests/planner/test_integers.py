"""Whole-number helpers of rules and messages."""

from __future__ import annotations

import pytest

from seqplan.planner.reading.integers import divisors, listed, multiples_around


def test_divisors_are_all_of_them_once() -> None:
    for number in range(1, 400):
        assert divisors(number) == tuple(d for d in range(1, number + 1) if number % d == 0)


@pytest.mark.parametrize(
    ("number", "step", "expected"),
    [(1000, 32, (992, 1024)), (2999, 8, (2992, 3000)), (3, 8, (8,)), (16, 8, (16, 24))],
)
def test_multiples_around(number: int, step: int, expected: tuple[int, ...]) -> None:
    assert multiples_around(number, step) == expected


def test_lists_read_as_a_sentence() -> None:
    assert listed([]) == ""
    assert listed([4]) == "4"
    assert listed([1, 2]) == "1 or 2"
    assert listed([1, 2, 4], "and") == "1, 2 and 4"
    assert listed(range(20)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, ..."
