"""Rates grow with the work: curves of every built-in device, whole tiles, half of the rate at half sizes."""

from __future__ import annotations

from typing import Any

import pytest

from seqplan import profiles
from seqplan.planner.cluster_spec import ClusterSpec
from seqplan.planner.timing.efficiency import DeviceClock
from seqplan.profiles.parts import load_device
from tests.planner.formula_cases import cluster

EXACT = 1e-12
GPUS = [name for name in profiles.device_names() if name != "cpu"]
CURVE = ("matmul_half_outputs", "matmul_half_depth", "matmul_tile")


def on_device(name: str) -> ClusterSpec:
    return profiles.load_cluster("dgx-h100").model_copy(update={"device": load_device(name)})


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_has_a_curve_with_its_source(name: str) -> None:
    device = load_device(name)
    for field in CURVE:
        value = getattr(device, field)
        assert value > 0, field
        assert value.source, field
    assert device.attention_half_tokens.source
    # Without a flash kernel attention is memory-efficient or plain matmuls, of which no curve is known.
    if any("flash" in kernels for kernels in device.attention_kernels.values()):
        assert device.attention_half_tokens > 0


@pytest.mark.parametrize("name", GPUS)
def test_bigger_matmuls_run_faster(name: str) -> None:
    device = load_device(name)
    dtype = "fp16"
    clock = DeviceClock(on_device(name), 8, dtype)
    rates = []
    for size in (128, 512, 2048, 8192):
        rates.append(2.0 * size**3 / clock.matmul_s(float(size), float(size), float(size), 2.0))
    assert rates == sorted(rates)
    best = float(device.peak_flops_per_s["fp16"]) * device.matmul_share(dtype)
    assert rates[0] < 0.5 * best
    assert 0.9 * best < rates[-1] <= best


def test_half_of_the_rate_at_the_half_sizes() -> None:
    clock = DeviceClock(cluster(memory_bytes_per_s=1e30), 8, "bf16")
    clock.half_outputs, clock.half_depth, clock.half_block = 250_000.0, 128.0, 1000.0

    def rate(rows: float, columns: float, depth: float) -> Any:
        return 2.0 * rows * columns * depth / clock.matmul_s(rows, columns, depth, 2.0)

    whole = 50e12  # 100 TFLOP/s at an efficiency of 0.5
    assert rate(500.0, 500.0, 1e12) == pytest.approx(whole / 2, rel=1e-6)
    assert rate(1e9, 1e9, 128.0) == pytest.approx(whole / 2, rel=1e-6)
    assert rate(500.0, 500.0, 128.0) == pytest.approx(whole / 4, rel=EXACT)
    long = clock.attention_s(1e12, 1e15, 64, causal=False)
    assert clock.attention_s(1e12, 1000.0, 64, causal=False) == pytest.approx(2.0 * long, rel=EXACT)


def test_sizes_are_computed_in_whole_tiles() -> None:
    clock = DeviceClock(cluster(), 8, "bf16")
    clock.tile = 16.0
    assert [float(clock.tiles(length)) for length in (1, 16, 17, 4096, 4097)] == [16, 16, 32, 4096, 4112]


def test_scores_are_wide_on_a_cpu() -> None:
    """Our materialised attention sums in fp32; only tensor cores do that with narrow factors."""
    on_cpu = profiles.load_cluster("local")
    rates = [DeviceClock(on_cpu, 2, dtype).scores_flops_per_s for dtype in ("bf16", "fp32")]
    assert rates[0] == rates[1] == DeviceClock(on_cpu, 2, "fp32").matmul_flops_per_s
    gpu = DeviceClock(cluster(), 8, "bf16")
    assert gpu.scores_flops_per_s == gpu.matmul_flops_per_s
