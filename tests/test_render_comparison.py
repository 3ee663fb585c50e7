"""Why one layout is slower than another: the causes named must explain the difference, and its sign."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from seqplan import render, render_choices, render_suggestion
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


ALIKE: list[dict[str, Any]] = [
    {"recompute": "full", "recompute_layers": 2},
    {"recompute": "full", "recompute_layers": 3},
    {"recompute": "full"},
    {"sp": 8, "attention": "ring", "ulysses_degree": 2},
    {"sp": 8, "attention": "ring", "ulysses_degree": 4},
    {"sp": 8, "attention": "ring"},
    {"sp": 8, "attention": "ulysses", "ulysses_degree": 8},
    {"mesh_order": ("pp", "sp", "dp", "tp")},
    {"mesh_order": ("sp", "pp", "dp", "tp")},
    {"zero_stage": 1, "zero_shard_size": 2},
    {"zero_stage": 1},
    {"stage_layers": (7, 5)},
    {"schedule": "interleaved", "num_virtual_stages": 2},
    {"schedule": "zbv"},
    {"tp_sequence_parallel": True},
    {"kernel": "math"},
    {},
]
"""Layouts of which the degrees alone tell only two groups apart."""


def table_rows(text: str) -> list[str]:
    """The rows of a printed table, numbers and measured cells cut off."""
    rows = [line.split(maxsplit=1)[1].split() for line in text.splitlines() if re.match(r" *\d+ +\d", line)]
    return [" ".join(row) for row in rows]


@pytest.mark.parametrize("pick_s", [None, 4.5])
def test_no_two_rows_of_a_table_read_alike(
    pick_s: float | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All figures are the same, so that only the choices can tell them apart; in both tables of `suggest`."""
    monkeypatch.setenv("COLUMNS", "240")
    layouts = tuple(answers.scored(**fields) for fields in ALIKE)
    assert len({each.layout for each in layouts}) == len(ALIKE)
    answer = answers.suggestion()
    if pick_s is None:
        answer = answer.model_copy(update={"ranked": layouts})
        render.show([render_suggestion.best(answer)])
    else:
        pick = answers.scored(pick_s)
        answer = answer.model_copy(update={"pick": pick, "with_other_trainers": layouts})
        render.show([render_suggestion.others(answer)])
    rows = table_rows(capsys.readouterr().out)
    assert len(rows) == len(ALIKE)
    assert len(set(rows)) == len(ALIKE)


@pytest.mark.parametrize(
    ("fields", "text", "words", "cell"),
    [
        ({}, "none", "recompute none", "none"),
        ({"recompute": "full"}, "full", "recompute full", "full"),
        # Two stages of 6: at most 2 of each, 4 of 12.
        (
            {"recompute": "full", "recompute_layers": 2},
            "full on 4 of 12 layers",
            "recompute full on 4 of 12 layers (2 a stage)",
            "full 4/12",
        ),
        # A stage of 3 recomputes all of its 3 where the other recomputes 4 of its 9.
        (
            {"recompute": "selective", "recompute_layers": 4, "stage_layers": (9, 3)},
            "selective on 7 of 12 layers",
            "recompute selective on 7 of 12 layers (4 a stage)",
            "sel 7/12",
        ),
    ],
)
def test_how_many_layers_are_recomputed(fields: dict[str, Any], text: str, words: str, cell: str) -> None:
    layout = answers.layout(**fields)
    assert layout.recompute_text == text
    assert f", {words}, attention" in render_choices.choices(layout)
    assert render_choices.recompute_cell(layout) == cell


def test_what_the_pick_hides_nowhere() -> None:
    layout = answers.layout(sp=8, attention="ring", ulysses_degree=4, mesh_order=("pp", "sp", "dp", "tp"))
    assert "attention ring on flash kernel, heads split over 4 of sp=8" in render_choices.choices(layout)
    assert render_choices.choices(layout).endswith("mesh order pp,sp,dp,tp")
