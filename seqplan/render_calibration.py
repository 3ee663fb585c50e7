"""Prints what calibrate measured: the rates of one rank, and the links."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from seqplan import render

if TYPE_CHECKING:
    from seqplan.planner.calibration.fit_runs import FitReport
    from seqplan.planner.calibration.samples import Measurements
    from seqplan.planner.cluster_spec import ClusterSpec


def show_calibration(cluster: ClusterSpec, measured: Measurements) -> None:
    """The numbers that decide a step's time, as the file states them."""
    from rich.table import Table

    device = cluster.device
    nodes = f"{cluster.num_nodes} nodes of " if cluster.num_nodes > 1 else ""
    ranks = f"{cluster.gpus_per_node} ranks" if cluster.gpus_per_node > 1 else "one rank"
    shared = f" on {cluster.cores_per_node} cores" if cluster.cores_per_node else ""
    table = Table(title=f"{device.name}: {nodes}{ranks}{shared}, all at work at once", title_justify="left")
    table.add_column("measured")
    table.add_column("value", justify="right")
    table.add_column("at half of it", justify="right")
    for dtype, peak in device.peak_flops_per_s.items():
        rate = float(peak) * device.matmul_share(dtype)
        outputs, depth = (device.of_dtype(f"matmul_half_{name}", dtype) for name in ("outputs", "depth"))
        table.add_row(f"matmuls {dtype}", _flops(rate), f"{outputs:,.0f} outputs, depth {depth:,.0f}")
    for dtype, peak in device.peak_flops_per_s.items():
        rate = float(peak) * device.attention_share(dtype)
        tokens = device.of_dtype("attention_half_tokens", dtype)
        table.add_row(f"attention {dtype}", _flops(rate), f"{tokens:,.0f} tokens")
    table.add_row("memory, a copy", _bytes(float(device.memory_bytes_per_s)), "")
    for dtype in device.peak_flops_per_s:
        rate = float(device.memory_bytes_per_s) * device.memory_share(dtype)
        table.add_row(f"between matmuls {dtype}", _bytes(rate), "")
    table.add_row("launch of an operation", f"{1e6 * float(device.kernel_launch_s):.1f} us", "")
    for link, leaves in ((cluster.intra_node, False), (cluster.inter_node, True)):
        if any(each.leaves_node == leaves for each in measured.transfers):
            table.add_row(f"{link.name}, a step", f"{1e6 * float(link.latency_s):.0f} us", "")
            table.add_row(f"{link.name}, at best", _bytes(float(link.bytes_per_s)), "")
    render.show([table])


def show_fit(report: FitReport) -> None:
    """What changed, what did not and why, and the runs before and after."""
    factors = [
        [
            each.name,
            f"{each.before:.4g}",
            "unchanged" if each.why_not else f"{each.after:.4g}",
            f"{100 * each.effect:.0f} %",
        ]
        for each in report.factors
    ]
    said = [
        (each.name, each.why_not or "at its bound")
        for each in report.factors
        if each.why_not or each.at_bound
    ]
    runs = [
        [
            run.path,
            run.layout,
            str(run.steps),
            render.duration(run.measured_s),
            f"{run.before_s / run.measured_s:.2f}",
            f"{run.after_s / run.measured_s:.2f}",
        ]
        for run in report.runs
    ]
    first, last = (100 * (math.exp(error) - 1) for error in (report.error_before, report.error_after))
    render.show(
        [
            render.table(
                "Numbers of the profile",
                ["number", "before", "after", "share of time"],
                factors,
                left=("number",),
            ),
            # A sentence is no cell: beside five columns of figures it would break every ten letters.
            render.listing("What the runs cannot move, and why", [f"{name}: {text}" for name, text in said]),
            render.table(
                "Runs: predicted over measured",
                ["run", "layout", "steps", "measured", "before", "after"],
                runs,
                left=("run", "layout"),
            ),
            f"error (root mean square): {first:.1f} % before, {last:.1f} % after",
        ]
    )


def _flops(rate: float) -> str:
    return f"{rate / 1e12:.1f} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:.1f} GFLOP/s"


def _bytes(rate: float) -> str:
    return f"{rate / 1e12:.2f} TB/s" if rate >= 1e12 else f"{rate / 1e9:.2f} GB/s"
