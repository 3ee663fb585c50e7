"""Built-in profiles: each loads, each number has a source, and the numbers are the published ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from seqplan import profiles
from seqplan.planner.cluster_spec import ClusterSpec, DeviceSpec
from seqplan.planner.errors import SeqplanError
from seqplan.planner.reading.quantity import Quantity
from seqplan.profiles import this_machine
from seqplan.profiles.cluster_file import cluster_from
from seqplan.profiles.resources import DEVICES, MODELS, read_profile
from seqplan.profiles.unknown_name import nearest_names

TB, GB, TFLOP = 1e12, 1e9, 1e12

# Vendors' datasheets and architecture whitepapers: TFLOP/s fp32 without TF32, fp16, bf16 (dense; GeForce with
# fp32 accumulation), memory bandwidth, and the memory as sold in GB. None: it cannot train in that dtype.
PUBLISHED: dict[str, tuple[float, float | None, float | None, float, float]] = {
    "p100-16": (9.3, 18.7, None, 732 * GB, 16),
    "v100-16": (15.7, 125, None, 900 * GB, 16),
    "v100-32": (15.7, 125, None, 900 * GB, 32),
    "t4": (8.1, 65, None, 320 * GB, 16),
    "a10g": (35, 70, 70, 600 * GB, 24),
    "a100-40": (19.5, 312, 312, 1555 * GB, 40),
    "a100-80": (19.5, 312, 312, 2039 * GB, 80),
    "a6000": (38.7, 154.8, 154.8, 768 * GB, 48),
    "l4": (30.3, 121, 121, 300 * GB, 24),
    "l20": (59.8, 119.5, 119.5, 864 * GB, 48),
    "l40s": (91.6, 362.05, 362.05, 864 * GB, 48),
    "h20": (44, 148, 148, 4.0 * TB, 96),
    "h100-pcie": (51.2, 756.5, 756.5, 2.0 * TB, 80),
    "h100-sxm": (66.9, 989.4, 989.4, 3.35 * TB, 80),
    "h200": (66.9, 989.4, 989.4, 4.8 * TB, 141),
    "b200": (80, 2250, 2250, 8 * TB, 192),
    "mi250x": (47.85, 191.5, 191.5, 1.6384 * TB, 64),  # one of two dies
    "mi300x": (163.4, 1307.4, 1307.4, 5.3 * TB, 192),
    "rtx3090": (35.6, 71, 71, 936 * GB, 24),
    "rtx4090": (82.6, 165.2, 165.2, 1008 * GB, 24),
    "rtx5090": (104.8, 209.5, 209.5, 1792 * GB, 32),
}


def on(device: str) -> DeviceSpec:
    """A built-in device, through a one-device cluster."""
    return cluster_from({**read_profile("hardware/clusters", "dgx-a100"), "device": device}, "test").device


@pytest.mark.parametrize("name", PUBLISHED)
def test_device_numbers_are_the_published_ones(name: str) -> None:
    device, (fp32, fp16, bf16, memory_rate, sold_gb) = on(name), PUBLISHED[name]
    expected = {"fp32": fp32, "fp16": fp16, "bf16": bf16}
    peaks = {dtype: peak / TFLOP for dtype, peak in device.peak_flops_per_s.items() if dtype != "fp8"}
    assert peaks == pytest.approx({dtype: peak for dtype, peak in expected.items() if peak is not None})
    assert device.memory_bytes_per_s == pytest.approx(memory_rate)
    # The driver shows less GiB than are sold as GB, and never less than nine tenths of them.
    assert 0.9 * sold_gb <= device.memory_bytes / 2**30 <= sold_gb
    assert device.name == name


def test_every_device_is_checked_against_its_datasheet() -> None:
    assert set(PUBLISHED) | {"cpu"} == set(profiles.device_names())


@pytest.mark.parametrize("name", [name for name in PUBLISHED if not name.startswith("mi")])
def test_attention_kernels_are_those_that_torch_has(name: str) -> None:
    """torch's sdp_utils.cpp: flash (fp16, bf16) from sm_80, memory-efficient (fp32, fp16) from sm_50."""
    device = on(name)
    generation = int(re.fullmatch(r"sm_(\d+)", device.architecture)[1])  # type: ignore[index]
    expected: dict[str, tuple[str, ...]] = {"fp32": ("efficient", "math"), "fp16": ("efficient", "math")}
    if generation >= 80:
        expected = dict.fromkeys(("fp16", "bf16"), ("flash", "efficient", "math")) | {
            "fp32": ("efficient", "math")
        }
    assert dict(device.attention_kernels) == expected
    assert device.kernels("fp16", 512) == ("efficient", "math")


def test_names_that_scripts_rely_on() -> None:
    clusters = "piz-daint dgx-v100 dgx-a100 dgx-h100 dgx-h200 dgx-b200 local"
    assert set(clusters.split()) <= set(profiles.cluster_names())
    models = "bert-base bert-large gpt2 gpt3-175b llama2-7b llama3-8b llama3-70b llama3-405b tiny"
    assert set(models.split()) <= set(profiles.model_names())
    assert "seqplan" in profiles.implementation_names()
    assert not [name for name in profiles.device_names() if name.startswith("_")]


def quantities(value: object) -> Iterator[Quantity]:
    """Every number of a specification."""
    if isinstance(value, Quantity):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from quantities(each)
    elif hasattr(value, "model_fields_set"):
        yield from quantities(vars(value))


@pytest.mark.parametrize("name", profiles.cluster_names())
def test_every_number_of_every_cluster_has_a_source(name: str) -> None:
    found = list(quantities(profiles.load_cluster(name)))
    assert len(found) >= 17  # 7 of the device, its peaks, 3 of each link, 1 of the communicator
    vague = [each.source for each in found if len(each.source) < 12 or "http" in each.source]
    assert vague == []
    # A number is out of a document (with a year or a standard), measured, or says that it is assumed.
    known = re.compile(
        r"\((19|20)\d\d\)|20\d\d|measured|assumed|this machine|autoparallel|SimuMax|ring-flash-attention"
        r"|torch's|driver total|PCI Express|InfiniBand|Omni-Path|IEEE"
    )
    assert [each.source for each in found if not known.search(each.source)] == []


def test_a_built_in_number_without_a_source_is_refused() -> None:
    data = {**read_profile("hardware/clusters", "dgx-a100"), "communicator_bytes": 1e8}
    with pytest.raises(SeqplanError, match=r"communicator_bytes = 1e\+08 a number needs"):
        cluster_from(data, "built-in")


@pytest.mark.parametrize("folder", ["hardware/devices", "hardware/links", "hardware/clusters", "models"])
def test_profiles_are_plain_yaml_named_like_their_file(folder: str) -> None:
    for path in files(profiles).joinpath(folder).iterdir():
        data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        stem = path.name.removesuffix(".yaml")
        assert data.get("name") == (None if stem.startswith("_") else stem)


@pytest.mark.parametrize("name", profiles.model_names())
def test_every_model_loads_with_its_source(name: str) -> None:
    model, notes = profiles.load_model(name)
    assert model.name == name
    assert notes[0] == f"built-in model: {read_profile(MODELS, name)['source']}"


@pytest.mark.parametrize("name", profiles.implementation_names())
def test_every_implementation_loads(name: str) -> None:
    assert profiles.load_implementation(name).name == name


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("A100-80GB", "a100-80"),
        ("NVIDIA-H100-SXM", "h100-sxm"),
        ("H10O-80GB", "h100-sxm"),  # the letter O
        ("v100-32gb", "v100-32"),
        ("RTX 4090", "rtx4090"),
    ],
)
def test_the_nearest_device(name: str, near: str) -> None:
    assert near == nearest_names(name, profiles.device_names())[0]


def test_nothing_is_near_to_another_thing() -> None:
    assert nearest_names("bert-base", profiles.cluster_names()) == []


def test_unknown_names_say_the_nearest_and_all() -> None:
    with pytest.raises(SeqplanError) as error:
        profiles.load_cluster("dgx-h10")
    assert "cluster = dgx-h10 is not built in; did you mean dgx-h100" in str(error.value)
    assert "piz-daint" in str(error.value)
    with pytest.raises(SeqplanError, match="model = bert-bas is not built in; did you mean bert-base"):
        profiles.load_model("bert-bas")
    with pytest.raises(SeqplanError, match="implementation = megatron is not built in"):
        profiles.load_implementation("megatron")


def test_local_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_machine, "core_count", lambda: 6)
    monkeypatch.setattr(this_machine, "memory_bytes", lambda: 48 * 2**30)
    monkeypatch.setattr(this_machine, "has_fast_bf16", lambda: True)
    local = profiles.load_cluster("local")
    assert (local.gpus_per_node, local.num_nodes, local.cores_per_node) == (6, 1, 6)
    assert local.device.memory_bytes == 8.0 * 2**30
    assert local.device.memory_bytes.source.startswith("this machine, read at load")
    assert set(local.device.attention_kernels) == {"fp32", "bf16"}
    assert local.for_gpus(12).device.memory_bytes == 4.0 * 2**30
    assert local.for_gpus(12).compute_share(12) == 0.5
    assert local.for_gpus(3).compute_share(3) == 1.0


def test_local_trains_in_fp32_where_bf16_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_machine, "has_fast_bf16", lambda: False)
    device = profiles.load_cluster("local").device
    assert set(device.attention_kernels) == set(device.peak_flops_per_s) == {"fp32"}
    assert "bf16" in read_profile(DEVICES, "cpu")["peak_flops_per_s"]  # the shared profile is untouched


@pytest.mark.parametrize(
    ("cpuinfo", "fast"),
    [
        ("processor : 0\nflags : fpu avx512f avx512_bf16\n", True),
        ("flags\t\t: fpu amx_bf16\n", True),
        ("Features : fp asimd bf16\n", True),
        ("flags : fpu avx2 avx512f\n", False),
        ("", False),
    ],
)
def test_what_the_cpu_says_of_bf16(
    cpuinfo: str, fast: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(cpuinfo)
    monkeypatch.setattr(this_machine, "_CPU_FLAGS", path)
    assert this_machine.has_fast_bf16() is fast


def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(this_machine, "_CGROUP_LIMIT", limit)
    whole = this_machine.memory_bytes()
    limit.write_text(f"{2**28}\n")
    assert this_machine.memory_bytes() == 2**28
    limit.write_text("max\n")
    assert this_machine.memory_bytes() == whole


def test_a_loaded_cluster_survives_a_round_trip() -> None:
    for name in profiles.cluster_names():
        cluster = profiles.load_cluster(name)
        assert ClusterSpec.model_validate_json(cluster.model_dump_json()) == cluster
