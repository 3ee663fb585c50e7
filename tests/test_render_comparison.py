"""Why one layout is slower than another: the causes named must explain the difference, and its sign."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from seqplan.planner.choosing.comparison import REST_AT_MOST, balance, rivals
from seqplan.planner.results import TIME_KINDS, ScoredLayout, TimeEstimate
from seqplan.render_comparison import against, why
from tests import answers


def step(**seconds: float) -> TimeEstimate:
    """Ten seconds of compute, and what is given on top."""
    by_kind = dict.fromkeys(TIME_KINDS, 0.0) | {"compute": 10.0}
    for kind, more in seconds.items():
        by_kind[kind] += more
    return answers.time(1.0).model_copy(update={"by_kind": by_kind, "step_time_s": sum(by_kind.values())})


def added(text: str) -> float:
    """The terms of a printed comparison, in seconds, added up by hand."""
    units = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
    terms = re.findall(r"\w+ ([+-])([\d.,]+) (s|ms|us)", text.partition(": ")[2])
    assert terms, text
    return sum(float(sign + number.replace(",", "")) * units[unit] for sign, number, unit in terms)


# What one seventy-billion layout with sp=2 pays against one with tp=4: more of four causes, less of one.
ONE = {"compute": 2.01, "tp": -2.58, "sp": 0.41, "dp": 0.23, "recompute": 0.12}


def test_causes_are_named_until_they_explain_the_difference() -> None:
    text = against(step(**ONE), step())
    assert text == "takes 1.9 % longer: compute +2.01 s, sp +410 ms, dp +230 ms, rest +120 ms, tp -2.58 s"
    assert added(text) == pytest.approx(sum(ONE.values()), rel=1e-9)
    assert against(step(sp=1.5, compute=-0.5), step()).endswith(": sp +1.50 s, compute -500 ms")
    assert against(step(tp=3.0, sp=-0.2), step()) == "takes 28.0 % longer: tp +3.00 s"
    assert against(step(), step()) == "is as fast"


def test_the_sum_of_what_is_named_has_the_sign_of_the_difference() -> None:
    """Every pattern of five causes up and down by 7, 5, 3, 2 and 1 s."""
    for signs in itertools.product((-1.0, 0.0, 1.0), repeat=5):
        sizes = dict(zip(("compute", "tp", "sp", "dp", "bubble"), (7.0, 5.0, 3.0, 2.0, 1.0), strict=True))
        more = {kind: sign * size for (kind, size), sign in zip(sizes.items(), signs, strict=True)}
        other = step(**dict.fromkeys(sizes, 10.0))
        slower = step(**{kind: 10.0 + value for kind, value in more.items()})
        difference = sum(more.values())
        found = balance(slower, other)
        if difference == 0:
            assert against(slower, other) == "is as fast"
            continue
        assert sum(seconds for _, seconds in found.terms) == pytest.approx(
            difference, rel=REST_AT_MOST + 1e-9
        )
        assert ("longer" in against(slower, other)) == (difference > 0) == (found.slower > 0)
        assert added(against(slower, other)) * difference > 0


def slower_by(seconds: float, **fields: Any) -> ScoredLayout:
    return answers.scored(4.0 + seconds, **fields)


def test_the_pick_is_compared_with_the_runner_up_and_with_other_degrees() -> None:
    alike, apart = slower_by(0.1, zero_stage=3), slower_by(0.4, dp=4, tp=2)
    assert rivals((answers.scored(), alike, slower_by(0.2, zero_stage=2), apart)) == (alike, apart)
    assert rivals((answers.scored(), apart, alike)) == (apart,)
    assert rivals((answers.scored(), alike)) == (alike,)
    assert rivals((answers.scored(),)) == ()
    ranked = (answers.scored(), alike, apart)
    answer = answers.suggestion().model_copy(update={"ranked": ranked})
    assert why(answer, ranked[0]) == (
        "the fastest of 250 layouts that fit; the same with zero stage 3 takes 2.5 % longer: compute "
        "+100 ms; dp4 pp2 tp2 sp1 takes 10.0 % longer: compute +400 ms"
    )
