"""Formulas of an inventory: right values over arrays, and nothing but formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from seqplan.planner.errors import SeqplanError
from seqplan.planner.memory.expression import MAX_LENGTH, Expression, compile_expression

SYMBOLS = frozenset({"T", "h", "flash", "ring"})
VALUES: dict[str, Any] = {
    "T": np.array([4.0, 7.0]),
    "h": 3.0,
    "flash": np.array([True, False]),
    "ring": np.array([True, True]),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("T * h + 1", [13, 22]),
        ("-T + 2", [-2, -5]),
        ("T / 2", [2, 3.5]),
        ("T // 2", [2, 3]),
        ("T % 4", [0, 3]),
        ("ceil_div(T, 2)", [2, 4]),
        ("min(T, 5)", [4, 5]),
        ("max(T, 5)", [5, 7]),
        ("T if flash else h", [4, 3]),
        ("flash and ring", [1, 0]),
        ("flash or not ring", [1, 0]),
        ("not flash", [0, 1]),
        ("T > 4 and ring", [0, 1]),
        ("T == 7", [0, 1]),
        ("(2 if flash and not ring else 5) * T", [20, 35]),
    ],
)
def test_values_over_arrays(text: str, expected: list[float]) -> None:
    result = Expression(text, SYMBOLS).evaluate(VALUES)
    assert np.array_equal(np.asarray(result, dtype=float), expected), text


def test_numbers_give_a_number() -> None:
    assert Expression("T * h", SYMBOLS).evaluate({"T": 4, "h": 2}) == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x + 1", "unknown symbol 'x' (known: T, flash, h, ring)"),
        ("T ** 9", "operator Pow is not allowed"),
        ("__import__('os')", "only min(x, y), max(x, y) and ceil_div(x, y) can be called"),
        ("min(T)", "only min(x, y), max(x, y) and ceil_div(x, y) can be called"),
        ("T.real", "Attribute is not allowed"),
        ("(1).__class__", "Attribute is not allowed"),
        ("T[0]", "Subscript is not allowed"),
        ("[1]", "List is not allowed"),
        ("lambda: 1", "Lambda is not allowed"),
        ("[x for x in T]", "ListComp is not allowed"),
        ("f'{T}'", "JoinedStr is not allowed"),
        ("'a'", "'a' is not a number"),
        ("None", "None is not a number"),
        ("1 < T < 3", "one comparison of two values at a time"),
        ("T is h", "one comparison of two values at a time"),
        ("~T", "operator Invert is not allowed"),
        ("min", "unknown symbol 'min'"),
        ("_where", "unknown symbol '_where'"),
        ("T if", "cannot be read"),
        ("", "cannot be read"),
        ("T\0", "cannot be read"),
    ],
)
def test_everything_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(SeqplanError) as raised:
        Expression(text, SYMBOLS)
    assert message in raised.value.message


def test_a_long_formula_is_refused() -> None:
    with pytest.raises(SeqplanError, match=f"formula of {MAX_LENGTH + 1} characters"):
        Expression("1" * (MAX_LENGTH + 1), SYMBOLS)


def test_names_and_cache() -> None:
    formula = compile_expression("min(T, h) * 2", SYMBOLS)
    assert formula.names == {"T", "h"}
    assert compile_expression("min(T, h) * 2", SYMBOLS) is formula
