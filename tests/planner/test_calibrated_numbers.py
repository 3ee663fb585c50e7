"""Every number of a calibrated file acts: another value of it changes some step time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from seqplan import profiles
from seqplan.planner.calibration.cluster_profile import profile_of, profile_text
from seqplan.planner.cluster_spec import ClusterSpec
from seqplan.planner.time_model import time_estimate
from seqplan.profiles.cluster_file import cluster_from
from tests.planner import calibrated, samples

FACTOR = 0.8
"""Below 1, so that a share stays one."""

IN_PLACE_OF_ZERO = 8.0

NO_TIME = ("memory_bytes", "context_bytes", "fragmentation_fraction", "communicator_bytes")
"""Numbers of the memory."""

LAYOUTS: tuple[dict[str, Any], ...] = (
    {"dp": 4, "zero_stage": 0},
    {"dp": 4, "zero_stage": 3},
    {"tp": 4, "tp_sequence_parallel": True},
    {"sp": 4},
)


def written(tmp_path: Path) -> dict[str, Any]:
    """What calibrate writes."""
    measured = calibrated.measurements()
    path = tmp_path / "lab.yaml"
    path.write_text(profile_text(profile_of(measured, "lab"), measured), encoding="utf-8")
    data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return data


def numbers(data: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, each in data.items():
        if isinstance(each, dict):
            if {*each} == {"value", "source"}:
                yield (*path, key)
            else:
                yield from numbers(each, (*path, key))


def times(cluster: ClusterSpec) -> list[float]:
    """Steps of every dtype on every kind of layout."""
    found = []
    for precision in calibrated.RATES:
        asked = samples.question(
            where=cluster, gpus=4, implementation=calibrated.OURS, seq_len=4096, precision=precision
        )
        for fields in LAYOUTS:
            found.append(time_estimate(asked, samples.layout(asked, **fields)).step_time_s)
    return found


def test_another_value_of_any_number_changes_a_step_time(tmp_path: Path) -> None:
    data = written(tmp_path)
    before = times(cluster_from(data, "lab"))
    paths = [path for path in numbers(data) if path[-1] not in NO_TIME]
    assert ("device", "matmul_dtype_efficiency", "fp32") in paths
    assert len(paths) > 20
    without_effect = []
    for path in paths:
        changed = json.loads(json.dumps(data))
        at = changed
        for key in path:
            at = at[key]
        at["value"] = FACTOR * at["value"] or IN_PLACE_OF_ZERO
        if times(cluster_from(changed, "lab")) == before:
            without_effect.append(".".join(path))
    assert without_effect == []


@pytest.mark.parametrize("work", ["matmul", "attention"])
def test_the_fastest_dtype_is_the_devices_and_the_tables_have_the_others(tmp_path: Path, work: str) -> None:
    assert max(calibrated.RATES, key=lambda dtype: calibrated.RATES[dtype]) == "bf16"
    device = written(tmp_path)["device"]
    of_work = {
        name: each
        for name, each in device.items()
        if name.startswith(f"{work}_") and name not in ("attention_kernels", "attention_causal_tile")
    }
    general = {name: each for name, each in of_work.items() if "_dtype_" not in name}
    tables = {name: each for name, each in of_work.items() if "_dtype_" in name}
    assert {name.replace("_dtype_", "_") for name in tables} == {*general}
    for each in general.values():
        assert ": bf16, " in each["source"]
    for table in tables.values():
        assert {*table} == {"fp32"}
        assert ": fp32, " in table["fp32"]["source"]


def test_one_dtype_needs_no_tables() -> None:
    """As on a CPU whose kernels know no bf16."""
    measured = calibrated.measurements()
    only = measured.model_copy(
        update={
            "kernels": {"fp32": measured.kernels["fp32"]},
            "matmuls": tuple(calibrated.matmuls("fp32")),
            "attention": tuple(calibrated.attention("fp32")),
        }
    )
    profile = profile_of(only, "lab")
    assert [name for name in profile["device"] if "_dtype_" in name] == []
    clock = cluster_from(profile, "lab").device
    both = cluster_from(profile_of(measured, "lab"), "lab").device
    assert clock.matmul_share("fp32") == both.matmul_share("fp32")
    assert clock.of_dtype("attention_half_tokens", "fp32") == both.of_dtype("attention_half_tokens", "fp32")


def test_what_a_file_says_of_each_dtype_is_what_was_measured(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text(yaml.safe_dump(written(tmp_path)), encoding="utf-8")
    device = profiles.load_cluster(tmp_path / "lab.yaml").device
    share = calibrated.CORES / calibrated.RANKS
    for dtype, rate in calibrated.RATES.items():
        assert device.peak_flops_per_s[dtype] * device.matmul_share(dtype) == pytest.approx(
            rate / share, rel=0.03
        )
        assert device.peak_flops_per_s[dtype] * device.attention_share(dtype) == pytest.approx(
            calibrated.ATTENTION_RATE / share, rel=0.03
        )
