"""A made-up machine whose every number is known: what calibrate would measure on it, and runs on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from seqplan.planner.calibration.rate_curves import ring_steps, ring_volume
from seqplan.planner.calibration.samples import (
    AttentionSample,
    Dtype,
    MatmulSample,
    Measurements,
    TrafficSample,
    Transfer,
    TransferSample,
)
from seqplan.planner.cluster_spec import ClusterSpec
from seqplan.planner.layout import Layout
from seqplan.planner.time_model import time_estimate
from seqplan.profiles import load_implementation
from tests.planner import samples

RANKS, CORES = 4, 2
RATES: dict[Dtype, float] = {"fp32": 40e9, "bf16": 160e9}
"""Of one rank while all work: half a core each."""
HALF_OUTPUTS, HALF_DEPTH = 1000.0, 16.0
ATTENTION_RATE, HALF_TOKENS, CAUSAL_TILE = 30e9, 64.0, 512.0
COPY_RATE, BETWEEN_RATE, NARROW_BETWEEN_RATE, LAUNCH_S = 20e9, 5e9, 3e9, 100e-6
LATENCY_S = 200e-6
TRANSFER_RATES: dict[Transfer, float] = {
    "all_reduce": 2e9, "all_gather": 1.5e9, "reduce_scatter": 0.6e9, "neighbour": 1.8e9
}  # fmt: skip

UNTIMED_STEPS = 2

OURS = load_implementation("seqplan")


def matmuls(dtype: Dtype) -> list[MatmulSample]:
    """2 (MN + a)(K + b) / rate."""
    sizes = [(m, n, k) for m in (128, 512, 2048) for n in (64, 512) for k in (64, 256, 1024)]
    return [
        MatmulSample(
            dtype=dtype,
            rows=m,
            columns=n,
            depth=k,
            seconds=2 * (m * n + HALF_OUTPUTS) * (k + HALF_DEPTH) / RATES[dtype],
        )
        for m, n, k in sizes
    ]


def attention(dtype: Dtype) -> list[AttentionSample]:
    """Causal blocks of which the mask spares whole tiles only, slower where they are short."""
    made = []
    for tokens in (128, 256, 512, 1024, 4096):
        flops = 4 * 4 * 64 * tokens * tokens / 2
        computed = flops * (1 + min(1.0, CAUSAL_TILE / tokens)) * (1 + HALF_TOKENS / tokens)
        forward_s = computed / ATTENTION_RATE
        made.append(
            AttentionSample(
                dtype=dtype,
                tokens=tokens,
                head_dim=64,
                forward_flops=flops,
                forward_s=forward_s,
                backward_s=2.5 * forward_s,
            )
        )
    return made


def transfers() -> list[TransferSample]:
    return [
        TransferSample(
            kind=kind,
            ranks=ranks,
            whole_bytes=size,
            leaves_node=False,
            seconds=ring_steps(kind, ranks) * LATENCY_S + ring_volume(kind, ranks) * size / rate,
        )
        for kind, rate in TRANSFER_RATES.items()
        for ranks in (2, 4)
        for size in (16e3, 256e3, 4e6)
    ]


def measurements() -> Measurements:
    """As calibrate hands them over: 4 ranks on 2 cores."""
    return Measurements(
        device_kind="cpu",
        device_name="measured-cpu",
        architecture="x86-64",
        memory_bytes=4e9,
        context_bytes=3e8,
        ranks_per_node=RANKS,
        nodes=1,
        cores_per_node=CORES,
        kernels={"fp32": ("flash", "math"), "bf16": ("flash", "math")},
        matmuls=(*matmuls("fp32"), *matmuls("bf16")),
        attention=(*attention("fp32"), *attention("bf16")),
        traffic=(
            TrafficSample(kind="copy", moved_bytes=2e6, seconds=2e6 / COPY_RATE),
            TrafficSample(kind="elementwise", dtype="fp32", moved_bytes=3e7, seconds=3e7 / BETWEEN_RATE),
            TrafficSample(
                kind="elementwise", dtype="bf16", moved_bytes=3e7, seconds=3e7 / NARROW_BETWEEN_RATE
            ),
        ),
        launch_s=LAUNCH_S,
        transfers=tuple(transfers()),
        repeats=7,
        date="2026-01-02",
        software="torch 2.13",
    )


def run_lines(true: ClusterSpec, planned: ClusterSpec, layout: Layout, **sizes: Any) -> list[dict[str, Any]]:
    """metrics.jsonl of a run on `true`, planned for `planned`; its first steps take longer, as they do."""
    asked = samples.question(where=true, gpus=layout.world_size, implementation=OURS, **sizes)
    seconds = time_estimate(asked, layout).step_time_s
    header = {
        "schema": "seqplan-run/1",
        "model": asked.model.model_dump(mode="json"),
        "cluster": planned.model_dump(mode="json"),
        "gpus": layout.world_size,
        "train": asked.train.model_dump(mode="json"),
        "layout": layout.model_dump(mode="json"),
        "implementation": asked.implementation.name,
        "device": "cpu" if true.device.kind == "cpu" else "cuda",
        "planned_step_time_s": 1.0,
        "untimed_steps": UNTIMED_STEPS,
    }
    # One slow step of five: the median does not see it.
    times = [5 * seconds, 2 * seconds, *(seconds * noise for noise in (1.0, 0.99, 1.01, 1.0, 3.0))]
    lines: list[dict[str, Any]] = [{"step": step, "step_time_s": took} for step, took in enumerate(times, 1)]
    lines[0]["run"] = header
    return lines


def write_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path
