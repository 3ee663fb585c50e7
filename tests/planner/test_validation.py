"""One line in plain words for everything that is wrong with a specification."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import Field, ValidationError

from seqplan.planner.errors import SeqplanError
from seqplan.planner.reading.quantity import PositiveQuantity
from seqplan.planner.spec import Spec
from seqplan.planner.validation import from_validation_error, validate_spec


class Wheel(Spec):
    spokes: int = Field(ge=1)
    rim: Literal["steel", "wood"]
    load_bytes: PositiveQuantity


class Cart(Spec):
    name: str
    wheels: tuple[Wheel, ...]
    axle: Wheel
    heavy: bool
    speeds: dict[Literal["slow", "fast"], float]


def _wheel(**changes: Any) -> dict[str, Any]:
    return {"spokes": 8, "rim": "wood", "load_bytes": {"value": 5, "source": "test"}, **changes}


def _cart(**changes: Any) -> dict[str, Any]:
    return {
        "name": "c",
        "wheels": [_wheel()],
        "axle": _wheel(),
        "heavy": True,
        "speeds": {"slow": 1.5},
        **changes,
    }


class Written(Spec):
    schema_: Literal["cart/1"] = Field(default="cart/1", alias="schema")
    name: str


def test_known_keys_are_called_as_they_are_written() -> None:
    with pytest.raises(SeqplanError) as caught:
        validate_spec(Written, {"name": "c", "zzz": 1}, "f")
    assert caught.value.message == "f: unknown key zzz (known keys: name, schema)."


def test_lists_become_tuples() -> None:
    assert validate_spec(Cart, _cart(), "f").wheels[0].spokes == 8


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"axle": _wheel(spokes=0)}, "axle.spokes = 0 must be at least 1"),
    ({"axle": _wheel(spokes="8")}, 'axle.spokes = "8" must be a whole number, not text'),
    ({"axle": _wheel(spokes=8.5)}, "axle.spokes = 8.5 must be a whole number"),
    ({"axle": _wheel(spokes=True)}, "axle.spokes = true must be a whole number, not a truth value"),
    ({"axle": _wheel(spokes=None)}, "axle.spokes = None must be a whole number, not nothing (null)"),
    ({"axle": _wheel(rim="stel")}, 'axle.rim = "stel" must be one of steel, wood (did you mean steel?)'),
    ({"axle": _wheel(spoke=3)}, "unknown key axle.spoke (did you mean spokes?)"),
    ({"axle": _wheel(zzz=3)}, "unknown key axle.zzz (known keys: load_bytes, rim, spokes)"),
    ({"colour": "red"}, 'unknown key colour (here "red"): write paint'),
    ({"axle": 7}, "axle = 7 must be a group of keys, not a number"),
    ({"wheels": [_wheel(), _wheel(spokes=-1)]}, "wheels[1].spokes = -1 must be at least 1"),
    ({"heavy": "yes"}, 'heavy = "yes" must be true or false, not text'),
    ({"name": 3}, "name = 3 must be text, not a number"),
    ({"speeds": {"medium": 1.0}}, "speeds has the key medium, which must be one of slow, fast"),
    ({"speeds": {"slow": "x"}}, 'speeds.slow = "x" must be a number, not text'),
    (
        {"axle": _wheel(load_bytes={"value": 0, "source": "s"})},
        "axle.load_bytes = 0 must be more than 0",
    ),
    ({"axle": _wheel(load_bytes={"value": float("nan"), "source": "s"})}, "= nan must be a finite number"),
    ({"axle": _wheel(load_bytes={"value": -4, "source": "s"})}, "= -4 must not be negative"),
    ({"axle": _wheel(load_bytes={"value": 10**400, "source": "s"})}, "must be a finite number"),
    ({"axle": _wheel(load_bytes={"value": 5, "source": " "})}, "source must say where"),
    ({"axle": _wheel(load_bytes=5)}, "axle.load_bytes = 5 a number needs {value: ..., source: ...}"),
]


@pytest.mark.parametrize(("changes", "said"), BROKEN, ids=[said[:40] for _, said in BROKEN])
def test_each_rule_in_plain_words(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SeqplanError) as error:
        validate_spec(Cart, _cart(**changes), "cart.yaml", {"colour": "paint"})
    message = str(error.value)
    assert message.startswith("cart.yaml: ")
    assert said in message
    jargon = ("pydantic", "input_value", "validation error", "type=", "dictionary", "Value error", "http")
    assert not any(word in message for word in jargon)


def test_everything_that_is_missing_or_wrong_is_told_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        Cart.model_validate({"axle": {"spokes": 0}, "heavy": 1})
    message = str(from_validation_error(caught.value, "f"))
    assert "axle.spokes = 0 must be at least 1" in message
    assert "heavy = 1 must be true or false" in message
    assert "missing name, wheels, axle.rim, axle.load_bytes, speeds" in message


def test_a_huge_value_is_shown_short() -> None:
    with pytest.raises(SeqplanError) as error:
        validate_spec(Cart, _cart(name=["x"] * 10**5, heavy="y" * 10**5), "f")
    assert len(str(error.value)) < 300
