"""Published measurements: the files read, the comparison's arithmetic, and every goal of issue and data."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

import pytest

from seqplan import cli_inputs, profiles
from seqplan.planner.errors import SeqplanError
from seqplan.planner.implementation import ImplementationSpec
from seqplan.planner.measured.published import PublishedSource
from seqplan.planner.measured.published_comparison import ComparedSource, compare
from seqplan.planner.validation import validate_spec

EXACT = 1e-12
"""Relative: the same sums in another order."""
LIVE = 1.2e-2
"""Relative: padding masks and the scores of the layer in hand, which the reference's formula leaves out."""
GIB = 2**30

# What each source's predictions must reach: statistic, within, at most or at least.
REQUIRED: dict[str, list[tuple[str, float | None, float]]] = {
    "vtrain": [("median_time_error", None, 0.08)],
    "narayanan": [("median_time_error", None, 0.08), ("worst_time_error", None, 0.11)],
    "nvidia-performance": [
        ("median_time_error", None, 0.15),
        ("time_share_within", 0.15, 0.95),
        # Nemotron 340B, three rows of 49, is predicted 10 % over: what it recomputed is not said.
        ("finished_over_limit_share", None, 0.07),
    ],
    "ring-self-attention": [
        ("worst_time_error", None, 0.1),
        ("worst_error", None, 0.02),
        ("out_of_memory_share", None, 1.0),
    ],
    "activation-recomputation": [
        ("worst_error", None, 0.01),
        ("median_time_error", None, 0.08),
        ("worst_time_error", None, 0.1),
    ],
    "simumax-b200": [
        ("median_time_error", None, 0.08),
        ("worst_time_error", None, 0.12),
        ("median_error", None, 0.03),
        ("worst_error", None, 0.06),
    ],
    "torchtitan": [("median_error", None, 0.08)],
    "launched-layouts": [("finished_over_limit_share", None, 0.0)],
    "nemo-logs": [("worst_error", None, 0.1), ("median_time_error", None, 0.15)],
    "zero-bubble": [
        ("median_time_error", None, 0.15),
        ("median_error", None, 0.05),
        ("worst_error", None, 0.15),
    ],
    "nanotron-cells": [("choice_throughput", None, 0.85), ("pick_throughput", None, 0.88)],
    "nanotron-sweep": [
        ("rank_correlation", None, 0.8),
        ("pick_throughput", None, 0.88),
        ("best_of_three_throughput", None, 0.95),
        ("median_error", None, 0.06),
        ("share_within", 0.15, 0.90),
        ("out_of_memory_share", None, 0.90),
        ("finished_over_limit_share", None, 0.03),
    ],
}

# Rows with a memory figure: the paper's 16 less one out of memory; one figure of Korthikanti et al.; the
# measured B200 column of SimuMax; torchtitan's tables; every third of the 866 finished runs of the sweep.
COMPARED = {
    "vtrain": 0,
    "narayanan": 0,
    "nvidia-performance": 0,
    "ring-self-attention": 15,
    "activation-recomputation": 1,
    "simumax-b200": 16,
    "torchtitan": 12,
    "launched-layouts": 0,
    "nemo-logs": 2,
    "zero-bubble": 25,
    "nanotron-cells": 0,
    "nanotron-sweep": 294,
}


@pytest.fixture(scope="module")
def compared() -> dict[str, ComparedSource]:
    loaders = cli_inputs.loaders()
    return {name: compare(profiles.load_published(name), loaders) for name in profiles.published_names()}


def test_every_source_is_required_of(compared: dict[str, ComparedSource]) -> None:
    assert set(compared) == set(REQUIRED) == set(COMPARED)
    assert {name: source.compared for name, source in compared.items()} == COMPARED


@pytest.mark.parametrize("name", REQUIRED)
def test_goals_are_in_the_data_and_met(compared: dict[str, ComparedSource], name: str) -> None:
    source = compared[name]
    asked = {(result.goal.statistic, result.goal.within): result for result in source.goals}
    for statistic, within, bound in REQUIRED[name]:
        result = asked[(statistic, within)]  # type: ignore[index]
        assert bound in (result.goal.at_most, result.goal.at_least)
        assert result.met, f"{statistic} is {result.value:.4f}, the goal {bound}"
    assert source.goals_met


def without_calibrated(name: str) -> ImplementationSpec:
    """A trainer's inventory with the counted tensors alone."""
    trainer = profiles.load_implementation(name)

    def counted(rows: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(row for row in rows if "calibrated" not in row.note)

    return trainer.model_copy(update={"states": counted(trainer.states), "layer": counted(trainer.layer)})


def test_constants_fitted_on_one_half_hold_on_the_other(compared: dict[str, ComparedSource]) -> None:
    """The calibrated rows of nanotron, scaled by one factor fitted on half of the sweep's cells, in turn."""
    rows = compared["nanotron-sweep"].rows
    counted = compare(
        profiles.load_published("nanotron-sweep"),
        dataclasses.replace(cli_inputs.loaders(), implementation=without_calibrated),
    ).rows
    cells = sorted({(row.group, row.layout.world_size) for row in rows})
    halves: list[list[tuple[float, float, float]]] = [[], []]
    for row, bare in zip(rows, counted, strict=True):
        if row.published_bytes is not None:
            place = cells.index((row.group, row.layout.world_size)) % 2
            kept = row.predicted_bytes - bare.predicted_bytes
            assert kept > 0
            halves[place].append((row.published_bytes, bare.predicted_bytes, kept))

    def errors(half: list[tuple[float, float, float]], factor: float) -> list[float]:
        return [abs((bare + factor * kept) / published - 1) for published, bare, kept in half]

    for fitted_on, other in (halves, halves[::-1]):
        assert len(fitted_on) > 100
        factor = min(
            (percent / 100 for percent in range(0, 201, 5)),
            key=lambda factor: statistics.median(errors(fitted_on, factor)),
        )
        assert factor == pytest.approx(1.0, abs=0.15), "the shipped constants are those of either half"
        assert statistics.median(errors(other, factor)) <= 0.06
        assert statistics.median(errors(other, 0.0)) > 0.15, "the half needs the calibrated rows"
        assert sum(error <= 0.15 for error in errors(other, 1.0)) / len(other) >= 0.88


def test_constants_of_table_4_hold_on_both_columns(compared: dict[str, ComparedSource]) -> None:
    # The two calibrated rows of megatron-2021: one was needed for tp, both columns must agree with it.
    for mode in ("tp", "sp"):
        errors = [row.error for row in compared["ring-self-attention"].rows if row.row.startswith(mode)]
        assert max(abs(error) for error in errors if error is not None) <= 0.02


def test_table_4_is_the_papers_formula(compared: dict[str, ComparedSource]) -> None:
    """Bytes of stage 0 of 8 as the reference gives them (24 layers, hidden 1024, 16 heads, fp16)."""
    h, z, layers = 1024, 16, 3
    for row in compared["ring-self-attention"].rows:
        tp, sp, length = row.layout.tp, row.layout.sp, row.seq_len
        tokens = 8 * row.layout.micro_batch_size * length
        vocab = -(-30522 // (128 * tp)) * 128 * tp
        parameters = layers * ((12 * h * h + 7 * h) / tp + 6 * h) + vocab * h / tp + (length + 2) * h
        kept = layers * (14 * h + 24 * h / tp + 5 * z * length / tp) + 3 * h
        expected = 14 * parameters + tokens / sp * kept + 40 * tokens
        assert row.predicted_bytes == pytest.approx(expected, rel=LIVE), row.row


def source(**changes: Any) -> dict[str, Any]:
    group: dict[str, Any] = {
        "title": "one table",
        "source": "table 1",
        "model": "tiny",
        "cluster": "dgx-h100",
        "common": {"dp": 1, "pp": 1, "tp": 1, "sp": 1, "global_batch_size": 1, "precision": "bf16"},
        "columns": ["row", "seq_len", "peak_gib"],
        "rows": [["a", 512, 1.0], ["b", 1024, None]],
    }
    group.update({key: changes.pop(key) for key in list(changes) if key in group})
    return {
        "name": "test",
        "title": "a test",
        "source": "made for a test",
        "implementation": "megatron-core",
        "memory": "allocated",
        "stage": "worst",
        "groups": [group],
        **changes,
    }


def test_a_row_is_planned_as_written() -> None:
    spec = validate_spec(PublishedSource, source(), "test")
    done = compare(spec, cli_inputs.loaders())
    first, second = done.rows
    assert (first.seq_len, second.seq_len) == (512, 1024)
    assert first.error == pytest.approx(first.predicted_bytes / GIB - 1, rel=EXACT)
    assert second.error is None
    assert second.predicted_bytes > first.predicted_bytes
    assert done.compared == 1


def test_reserved_memory_adds_what_the_allocator_loses() -> None:
    allocated = compare(validate_spec(PublishedSource, source(), "test"), cli_inputs.loaders()).rows[0]
    reserved = compare(
        validate_spec(PublishedSource, source(memory="reserved"), "test"), cli_inputs.loaders()
    )
    lost = float(profiles.load_cluster("dgx-h100").device.fragmentation_fraction)
    assert lost > 0
    expected = allocated.predicted_bytes * (1 + lost)
    assert reserved.rows[0].predicted_bytes == pytest.approx(expected, rel=EXACT)


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"columns": ["row", "seq_len", "peak_gb"]}, "unknown column peak_gb"),
    ({"rows": [["a", 512]]}, "row 1 has 2 values for 3 columns"),
    ({"columns": ["row", "seq_len", "dp"]}, "dp is both common and a column"),
    ({"kinds": ["weight"]}, "unknown kinds weight; known are weights, gradients"),
    ({"goals": [{"statistic": "worst_error"}]}, "worst_error needs either at_most or at_least"),
    ({"goals": [{"statistic": "share_within", "at_least": 0.9}]}, "within belongs to share_within"),
    ({"memory": "used"}, "memory"),
    ({"fitted": {"rows": ["c"]}}, "fitted names no group or row of this source: c"),
]


@pytest.mark.parametrize(("changes", "text"), BROKEN, ids=[text[:20] for _, text in BROKEN])
def test_a_broken_file_says_what_is_wrong(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(SeqplanError, match=text.replace("(", "[(]")):
        validate_spec(PublishedSource, source(**changes), "test")


def test_a_broken_row_names_itself() -> None:
    spec = validate_spec(PublishedSource, source(rows=[["a", -1, 1.0]]), "test")
    with pytest.raises(SeqplanError, match="test, one table, a: seq_len"):
        compare(spec, cli_inputs.loaders())


def test_an_unknown_source_is_answered_with_the_known() -> None:
    with pytest.raises(SeqplanError, match="publication"):
        profiles.load_published("nanotron-swep")
