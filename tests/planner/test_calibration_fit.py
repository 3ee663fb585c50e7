"""Fitting: curves give back the numbers that made the points, files read back equal, runs move a profile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqplan import profiles
from seqplan.planner.calibration.cluster_profile import cluster_text, profile_of, profile_text
from seqplan.planner.calibration.factors import FACTORS, scaled
from seqplan.planner.calibration.fit_runs import Fit, determined, fit_runs
from seqplan.planner.calibration.rate_curves import attention_curve, causal_tile, matmul_curve, transfer_line
from seqplan.planner.calibration.run_records import Run, read_run
from seqplan.planner.choosing.layout_table import from_layout
from seqplan.planner.cluster_spec import ClusterSpec
from seqplan.planner.collectives import Network
from seqplan.planner.errors import SeqplanError
from seqplan.planner.timing.efficiency import DeviceClock
from seqplan.profiles.cluster_file import cluster_from
from tests.planner import calibrated, samples

CLOSE = 0.03
"""Half sizes are searched over a grid whose neighbours are 15 % apart; a curve is off by less."""

BY_NAME = {factor.name: factor for factor in FACTORS}


def test_a_matmul_curve_gives_back_its_numbers() -> None:
    curve = matmul_curve(calibrated.matmuls("bf16"))
    assert curve.error < CLOSE
    assert curve.flops_per_s == pytest.approx(calibrated.RATES["bf16"], rel=CLOSE)
    assert curve.half_sizes[1] == pytest.approx(calibrated.HALF_DEPTH, rel=0.3)


def test_an_attention_curve_finds_the_tile_that_a_mask_spares() -> None:
    noisy = [
        each.model_copy(update={"forward_s": each.forward_s * factor})
        for each, factor in zip(calibrated.attention("bf16"), (1.2, 0.9, 0.8, 1.1, 1.0), strict=True)
    ]
    tile = causal_tile([noisy, calibrated.attention("fp32")])  # whichever dtype comes first
    curve = attention_curve(calibrated.attention("fp32"), tile)
    assert curve.half_sizes[2] == calibrated.CAUSAL_TILE
    assert curve.flops_per_s == pytest.approx(calibrated.ATTENTION_RATE, rel=CLOSE)
    assert curve.error < CLOSE


def test_a_line_gives_each_kind_of_transfer_its_rate() -> None:
    line = transfer_line(calibrated.transfers())
    assert line.latency_s == pytest.approx(calibrated.LATENCY_S, rel=0.1)
    assert line.bytes_per_s == pytest.approx(calibrated.TRANSFER_RATES, rel=0.1)


def test_no_link_is_faster_than_a_copy() -> None:
    """Where work is taken off a time, little may be left of it: a rate of noise."""
    most = 0.9 * min(calibrated.TRANSFER_RATES.values())
    line = transfer_line(calibrated.transfers(), most)
    assert set(line.bytes_per_s.values()) == {most}


def test_noise_of_single_points_moves_a_curve_little() -> None:
    noise = np.random.default_rng(0).normal(0.0, 0.1, 100)
    points = [
        each.model_copy(update={"seconds": each.seconds * math.exp(noise[index])})
        for index, each in enumerate(calibrated.matmuls("fp32"))
    ]
    curve = matmul_curve(points)
    assert curve.flops_per_s == pytest.approx(calibrated.RATES["fp32"], rel=0.15)
    assert 0.05 < curve.error < 0.15


@pytest.fixture(scope="module")
def measured_cluster(tmp_path_factory: pytest.TempPathFactory) -> ClusterSpec:
    path = tmp_path_factory.mktemp("calibrated") / "lab.yaml"
    measured = calibrated.measurements()
    path.write_text(profile_text(profile_of(measured, "lab"), measured), encoding="utf-8")
    return profiles.load_cluster(path)


def test_the_file_says_what_was_measured(measured_cluster: ClusterSpec) -> None:
    """Rates of one core: 4 ranks on 2 cores had half of one each, and get that again."""
    cluster = measured_cluster
    assert (cluster.name, cluster.gpus_per_node, cluster.cores_per_node) == ("lab", 4, 2)
    assert not cluster.device.transfers_overlap
    clock = DeviceClock(cluster, ranks_on_node=calibrated.RANKS, precision="fp32")
    for each in calibrated.matmuls("fp32"):
        predicted = clock.matmul_s(each.rows, each.columns, each.depth, 0.0) - clock.launch_s
        assert predicted == pytest.approx(each.seconds, rel=2 * CLOSE)
    assert clock.launch_s == pytest.approx(calibrated.LAUNCH_S, rel=1e-3)
    assert clock.traffic_s(3e7) == pytest.approx(3e7 / calibrated.BETWEEN_RATE, rel=1e-3)
    narrow = DeviceClock(cluster, ranks_on_node=calibrated.RANKS, precision="bf16")
    assert narrow.traffic_s(3e7) == pytest.approx(3e7 / calibrated.NARROW_BETWEEN_RATE, rel=1e-3)
    alone = DeviceClock(cluster, ranks_on_node=calibrated.CORES, precision="fp32")
    assert alone.matmul_flops_per_s == pytest.approx(2 * clock.matmul_flops_per_s)


def test_every_number_has_its_source(measured_cluster: ClusterSpec) -> None:
    def sources(value: Any) -> list[str]:
        if isinstance(value, Mapping):
            own = [value["source"]] if "source" in value else []
            return own + [source for each in value.values() for source in sources(each)]
        return []

    found = sources(
        {
            "device": measured_cluster.device.model_dump(mode="json"),
            "link": measured_cluster.intra_node.model_dump(mode="json"),
        }
    )
    wanted = ("measured by seqplan calibrate on 2026-01-02, median of 7", "assumed: ")
    assert len(found) > 20
    assert all(source.startswith(wanted) for source in found), found


def test_ranks_that_sent_at_once_have_what_each_of_them_had() -> None:
    """Two nodes of 4: rank i with rank i. A group over both nodes then gets the measured rate again."""
    over = [each for each in calibrated.transfers() if each.ranks == 2]
    between = tuple(each.model_copy(update={"leaves_node": True}) for each in over)
    measured = calibrated.measurements().model_copy(update={"nodes": 2, "transfers": between})
    cluster = cluster_from(profile_of(measured, "two"), "two")
    asked = samples.question(where=cluster, gpus=8, precision="fp32")
    network = Network.of(asked)
    group = network.group(from_layout(samples.layout(asked, dp=2, tp=4), asked.train), ("dp",))
    assert float(group.ranks_per_node[0]) == 1.0
    for each in over:
        seconds = getattr(network, f"{each.kind}_s")(each.whole_bytes, group)
        assert float(seconds[0]) == pytest.approx(each.seconds, rel=0.1), each


def test_a_profile_written_out_reads_back_equal(measured_cluster: ClusterSpec, tmp_path: Path) -> None:
    path = tmp_path / "again.yaml"
    path.write_text(cluster_text(measured_cluster, "made again"), encoding="utf-8")
    assert profiles.load_cluster(path) == measured_cluster


LAYOUTS = ({"dp": 8}, {"tp": 8}, {"dp": 2, "tp": 4}, {"sp": 8}, {"dp": 8, "zero_stage": 3})
SIZES = ({"seq_len": 2048}, {"seq_len": 32768, "global_batch_size": 8})


def fitted(
    tmp_path: Path, base: ClusterSpec, truth: Mapping[str, float], layouts: Any = LAYOUTS, sizes: Any = SIZES
) -> Fit:
    """The fit of `base` to runs on the same with the factors of `truth`."""
    true = scaled(base, {BY_NAME[name]: by for name, by in truth.items()})
    runs: list[Run] = []
    for fields in layouts:
        for size in sizes:
            asked = samples.question(where=base, gpus=8, implementation=calibrated.OURS, **size)
            chosen = samples.layout(asked, **fields)
            lines = calibrated.run_lines(true, base, chosen, **size)
            runs.append(read_run(calibrated.write_lines(tmp_path / f"{len(runs)}.jsonl", lines)))
    return fit_runs(base, runs, profiles.load_implementation, "fitted")


@pytest.mark.parametrize(
    "truth",
    [
        {"device.matmul_efficiency": 0.8, "intra_node.efficiency": 0.6},
        {"device.attention_efficiency": 1.5, "device.memory_efficiency": 0.7},
        {"device.matmul_efficiency": 1.2, "device.attention_efficiency": 0.5, "intra_node.efficiency": 0.4},
    ],
)
def test_a_fit_finds_the_factors_that_made_the_runs(tmp_path: Path, truth: Mapping[str, float]) -> None:
    fit = fitted(tmp_path, samples.cluster(), truth)
    assert fit.report.error_before > 0.05
    assert fit.report.error_after < 0.005
    found = {each.name: each for each in fit.report.factors}
    for name, by in truth.items():
        assert found[name].after / found[name].before == pytest.approx(by, rel=0.05), name
        number = BY_NAME[name].value(fit.cluster)
        assert number.source.startswith("fitted: ")
        assert number.source.endswith("; before: made for a test")
    # One node: nothing went between nodes.
    assert found["inter_node.efficiency"].why_not == "decides 0.0 % of the runs' time, too little to be seen"
    assert fit.cluster.inter_node == samples.cluster().inter_node


def test_one_run_determines_one_factor(tmp_path: Path) -> None:
    truth = {"device.matmul_efficiency": 0.8}
    fit = fitted(tmp_path, samples.cluster(), truth, LAYOUTS[:1], SIZES[:1])
    moved = [each.name for each in fit.report.factors if not each.why_not]
    assert moved == ["device.matmul_efficiency"]
    reasons = [each.why_not for each in fit.report.factors if each.why_not]
    assert any(why.startswith("1 run does not determine") or "too little" in why for why in reasons)
    assert all(each.after == each.before for each in fit.report.factors if each.why_not)


def test_factors_that_move_together_are_not_told_apart() -> None:
    """Columns: one by itself, two of which the second is twice the first, one that is hardly felt."""
    effects = np.array(
        [[0.5, 0.2, 0.4, 0.01], [0.2, 0.1, 0.2, 0.0], [0.1, 0.3, 0.6, 0.01], [0.3, 0.1, 0.2, 0.0]]
    )
    chosen, why_not = determined(effects)
    assert chosen in ([0, 1], [0, 2])
    assert why_not[3].startswith("decides 0.7 %")
    (twin,) = {1, 2} & set(why_not)
    assert why_not[twin] == "the runs cannot tell it from the other factors; add other layouts"


def test_a_share_of_a_datasheet_never_exceeds_one() -> None:
    low, high = BY_NAME["device.matmul_efficiency"].bounds(samples.cluster())
    assert math.exp(high) == pytest.approx(1 / 0.7)
    assert low < 0


def test_beyond_a_measured_peak_the_peak_moves(measured_cluster: ClusterSpec) -> None:
    factor = BY_NAME["device.matmul_efficiency"]
    faster = scaled(measured_cluster, {factor: 2.0})
    before = DeviceClock(measured_cluster, calibrated.RANKS, "fp32")
    after = DeviceClock(faster, calibrated.RANKS, "fp32")
    assert max(float(each) for each in faster.device.matmul_dtype_efficiency.values()) <= 1.0
    assert after.matmul_flops_per_s == pytest.approx(2 * before.matmul_flops_per_s)
    assert after.attention_flops_per_s == pytest.approx(before.attention_flops_per_s)
    ClusterSpec.model_validate(faster.model_dump())


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ([], "the file is empty"),
        (["not json"], "line 1: is not JSON"),
        (["[1, 2]"], "line 1: is no JSON object"),
        ([{"step": 1, "step_time_s": 1.0}], "its first line has no `run`"),
        ([{"step": 1, "step_time_s": 1.0, "run": {"schema": "other/2"}}], "has the schema 'other/2'"),
        (
            [{"step": 1, "step_time_s": 1.0, "run": {"schema": "seqplan-run/1"}}],
            "missing model, cluster, gpus",
        ),
    ],
)
def test_a_file_that_is_no_run_is_refused_in_one_line(tmp_path: Path, changed: list[Any], says: str) -> None:
    path = tmp_path / "metrics.jsonl"
    if all(isinstance(line, str) for line in changed):
        path.write_text("".join(f"{line}\n" for line in changed))
    else:
        calibrated.write_lines(path, changed)
    check_refused(path, says)


@pytest.mark.parametrize(
    ("step", "field", "value", "says"),
    [
        (4, "step_time_s", math.nan, "line 4: step_time_s = nan must be a finite number above 0"),
        (3, "step_time_s", -1.0, "line 3: step_time_s = -1.0 must be a finite number above 0"),
        (3, "step_time_s", 1e308, "line 3: step_time_s = 1e+308 is no time of a training step"),
        (3, "step_time_s", 1e-300, "line 3: step_time_s = 1e-300 is no time of a training step"),
        (5, "step_time_s", None, "line 5: step_time_s = None must be a number"),
        (5, "step", 2, "line 5: step 2 follows step 4; steps must rise"),
        (2, "step", "2", "line 2: step = '2' must be a whole number"),
    ],
)
def test_a_line_that_cannot_be_is_named(tmp_path: Path, step: int, field: str, value: Any, says: str) -> None:
    lines = whole_run()
    lines[step - 1][field] = value
    check_refused(calibrated.write_lines(tmp_path / "metrics.jsonl", lines), says)


def test_a_header_whose_layout_is_of_other_gpus_is_refused(tmp_path: Path) -> None:
    lines = whole_run()
    lines[0]["run"]["gpus"] = 16
    path = calibrated.write_lines(tmp_path / "metrics.jsonl", lines)
    check_refused(path, "gpus = 16, and its layout dp8,pp1,tp1,sp1 has 8 ranks")


def test_a_run_without_timed_steps_is_refused(tmp_path: Path) -> None:
    path = calibrated.write_lines(tmp_path / "metrics.jsonl", whole_run()[: calibrated.UNTIMED_STEPS])
    check_refused(path, "has 2 steps, and the first 2 of a run are not timed. Run 5 steps or more.")


def test_a_run_of_another_machine_is_refused(tmp_path: Path, measured_cluster: ClusterSpec) -> None:
    run = read_run(calibrated.write_lines(tmp_path / "metrics.jsonl", whole_run()))
    assert run.steps == 5
    for other, says in (
        (profiles.load_cluster("dgx-a100"), "ran on sample device, and dgx-a100 describes a100-80"),
        (measured_cluster, "ran on sample device, and lab describes measured-cpu"),
    ):
        with pytest.raises(SeqplanError, match=says):
            fit_runs(other, [run], profiles.load_implementation, "fitted")


def whole_run() -> list[dict[str, Any]]:
    base = samples.cluster()
    asked = samples.question(where=base, gpus=8, implementation=calibrated.OURS)
    return calibrated.run_lines(base, base, samples.layout(asked, dp=8))


def check_refused(path: Path, says: str) -> None:
    with pytest.raises(SeqplanError) as error:
        read_run(path)
    message = str(error.value)
    assert message.startswith(str(path))
    assert says in message
    assert "\n" not in message
