"""Measurements -> a cluster file of the form that `--cluster FILE` reads, every number with its source.

Rates of CPU ranks are stated for one core: a rank that had half a core while all ranks worked has half of
them, which is how the time model hands the cores out again (DeviceClock), to any number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from seqplan.planner.calibration.rate_curves import (
    Curve,
    attention_curve,
    causal_tile,
    matmul_curve,
    transfer_line,
)
from seqplan.planner.calibration.samples import Dtype, Measurements, TransferSample
from seqplan.planner.cluster_spec import ClusterSpec, DeviceSpec

DIGITS = 4
"""Significant digits of a measured number: more would be noise."""

NOT_MEASURED = "assumed: not measured by calibrate; "

FRAGMENTATION = {"cpu": 0.05, "cuda": 0.064, "rocm": 0.064}
"""Of the built-in devices of each kind."""

COMMUNICATOR_BYTES = {"cpu": 4 * 2**20, "cuda": 192 * 2**20, "rocm": 192 * 2**20}
"""Of the built-in clusters of each kind."""


def profile_of(measured: Measurements, name: str, known: DeviceSpec | None = None) -> dict[str, Any]:
    """The keys of the cluster file. `known`: the built-in device of that name, with its datasheet's peaks."""
    said = _Source(measured)
    inside = [each for each in measured.transfers if not each.leaves_node]
    between = [each for each in measured.transfers if each.leaves_node]
    most = _rate(measured, "copy") / 2  # what is sent is read and written at least once
    profile: dict[str, Any] = {
        "name": name,
        "device": _device(measured, said, known),
        "gpus_per_node": measured.ranks_per_node,
        "num_nodes": measured.nodes,
        "intra_node": _link("between ranks of a node", inside, most, said) if inside else "loopback",
        "inter_node": _link("between nodes", between, most, said) if between else "ethernet-10g",
        # Measured is what each rank has while all of its node send: as if each had a NIC to itself.
        "nics_per_node": measured.ranks_per_node if between else 1,
        "communicator_bytes": _assumed(
            COMMUNICATOR_BYTES[measured.device_kind], "as in the built-in clusters"
        ),
    }
    if measured.cores_per_node is not None:
        profile["cores_per_node"] = measured.cores_per_node
    return profile


def profile_text(profile: Mapping[str, Any], measured: Measurements) -> str:
    """The file."""
    ranks = f"{measured.ranks_per_node} ranks" if measured.ranks_per_node > 1 else "one rank"
    cores = f" sharing {measured.cores_per_node} cores" if measured.cores_per_node else ""
    head = (
        f"# Measured by seqplan calibrate on {measured.date} with {ranks}{cores} a node, all at work at once"
        f" ({measured.software}).\n"
        "# Use it as --cluster FILE; `seqplan fit FILE --from metrics.jsonl` refines it.\n"
    )
    return head + yaml.dump(dict(profile), sort_keys=False, width=1000, allow_unicode=True)


def cluster_text(cluster: ClusterSpec, made: str) -> str:
    """A whole profile as the file that reads as it."""
    return f"# {made}.\n" + yaml.dump(
        cluster.model_dump(mode="json", exclude_none=True), sort_keys=False, width=1000, allow_unicode=True
    )


class _Source:
    """The text that goes with a measured number."""

    def __init__(self, measured: Measurements) -> None:
        self.when = f"measured by seqplan calibrate on {measured.date}, median of {measured.repeats}"

    def of(self, value: float, what: str = "") -> dict[str, Any]:
        return {"value": rounded(value), "source": self.when + (f": {what}" if what else "")}


def rounded(value: float) -> float:
    """To DIGITS significant digits."""
    return float(f"{value:.{DIGITS}g}")


def _assumed(value: float, why: str) -> dict[str, Any]:
    return {"value": value, "source": NOT_MEASURED + why}


def _device(measured: Measurements, said: _Source, known: DeviceSpec | None) -> dict[str, Any]:
    # A rank had this much of a core (of a GPU: all of it).
    share = 1.0
    under = ""
    if measured.cores_per_node is not None:
        share = min(1.0, measured.cores_per_node / measured.ranks_per_node)
        under = f", of one core while {measured.ranks_per_node} ranks shared {measured.cores_per_node}"
    matmul = {
        dtype: matmul_curve([each for each in measured.matmuls if each.dtype == dtype])
        for dtype in measured.kernels
    }
    # The fastest dtype is the one that is trained in, so its numbers are the device's; the tables by dtype
    # have the others. A number that stood in both places would be read in one of them only.
    order = sorted(matmul, key=lambda dtype: -matmul[dtype].flops_per_s)
    points = {dtype: [each for each in measured.attention if each.dtype == dtype] for dtype in order}
    tile = causal_tile(list(points.values()))
    attention = {dtype: attention_curve(points[dtype], tile) for dtype in order}
    copy_bytes_per_s = _rate(measured, "copy") / share
    work = {
        dtype: _rate(measured, "elementwise", dtype) / share
        for dtype in order
        if any(each.dtype == dtype for each in measured.traffic)
    }
    peaks = {dtype: curve.flops_per_s / share for dtype, curve in matmul.items()}
    bandwidth = max(copy_bytes_per_s, *work.values())
    # Shares are at most 1, so the peak is the larger of both.
    tops = {dtype: max(peaks[dtype], attention[dtype].flops_per_s / share) for dtype in peaks}
    peak_entries = {
        dtype: said.of(top, f"the rate that big matmuls or attention tend to{under}")
        for dtype, top in tops.items()
    }
    bandwidth_entry = said.of(bandwidth, f"a copy{under}")
    if known is not None:  # so that MFU is what everybody means by it
        for dtype in peaks:
            if dtype in known.peak_flops_per_s and known.peak_flops_per_s[dtype] >= peaks[dtype]:
                peak_entries[dtype] = _quantity(known.peak_flops_per_s[dtype])
        if known.memory_bytes_per_s >= bandwidth:
            bandwidth_entry = _quantity(known.memory_bytes_per_s)
    shares = {dtype: min(1.0, peaks[dtype] / peak_entries[dtype]["value"]) for dtype in peaks}
    attention_shares = {
        dtype: min(1.0, curve.flops_per_s / share / peak_entries[dtype]["value"])
        for dtype, curve in attention.items()
    }
    return {
        "name": measured.device_name,
        "kind": measured.device_kind,
        "architecture": measured.architecture,
        "memory_bytes": {"value": measured.memory_bytes, "source": f"{said.when}: of one rank"},
        "memory_bytes_per_s": bandwidth_entry,
        "peak_flops_per_s": peak_entries,
        "attention_kernels": {dtype: list(kernels) for dtype, kernels in measured.kernels.items()},
        **_rates("matmul", order, matmul, shares, ("outputs", "depth"), said),
        **_rates("attention", order, attention, attention_shares, ("tokens", "head_dim"), said),
        "attention_causal_tile": said.of(tile, "keys of a tile; the one that all dtypes' points meet best"),
        **_memory_shares({dtype: rate / bandwidth_entry["value"] for dtype, rate in work.items()}, said),
        "kernel_launch_s": said.of(measured.launch_s * share, f"a small operation with its gradient{under}"),
        "transfers_overlap": measured.device_kind != "cpu",
        "context_bytes": said.of(measured.context_bytes, "memory of a rank beside its tensors"),
        "fragmentation_fraction": _assumed(FRAGMENTATION[measured.device_kind], "as in the built-in devices"),
    }


def _memory_shares(shares: Mapping[Dtype, float], said: _Source) -> dict[str, Any]:
    """The first dtype's as the device's, the others' by dtype: a CPU widens bf16 to compute with it."""
    what = "what lies between the matmuls of a layer, over a copy"
    first, *others = [(dtype, said.of(share, f"{dtype}, {what}")) for dtype, share in shares.items()]
    entries: dict[str, Any] = {"memory_efficiency": first[1]}
    return entries | ({"memory_dtype_efficiency": dict(others)} if others else {})


def _quantity(known: Any) -> dict[str, Any]:
    return {"value": float(known), "source": known.source}


def _rates(
    work: str,
    order: Sequence[Dtype],
    curves: Mapping[Dtype, Curve],
    shares: Mapping[Dtype, float],
    half: tuple[str, str],
    said: _Source,
) -> dict[str, Any]:
    """The first dtype's share of the peak and half sizes as the device's, the others' by dtype."""
    first, others = order[0], order[1:]
    entries: dict[str, Any] = {}
    of: dict[str, dict[Dtype, dict[str, Any]]] = {
        "efficiency": {dtype: said.of(shares[dtype], _fit(curves[dtype], dtype)) for dtype in order},
        **{
            f"half_{name}": {
                dtype: said.of(curves[dtype].half_sizes[place], f"{dtype}, at half of its rate")
                for dtype in order
            }
            for place, name in enumerate(half)
        },
    }
    for name, numbers in of.items():
        entries[f"{work}_{name}"] = numbers[first]
        if others:
            entries[f"{work}_dtype_{name}"] = {dtype: numbers[dtype] for dtype in others}
    return entries


def _fit(curve: Curve, dtype: str) -> str:
    return f"{dtype}, share of the peak; the curve meets its points to {100 * curve.error:.0f} %"


def _rate(measured: Measurements, kind: str, dtype: Dtype | None = None) -> float:
    """Bytes a second; the median over sizes."""
    samples = [each for each in measured.traffic if (each.kind, each.dtype) == (kind, dtype)]
    return float(np.median([each.moved_bytes / each.seconds for each in samples]))


def _link(
    name: str, samples: Sequence[TransferSample], most_bytes_per_s: float, said: _Source
) -> dict[str, Any]:
    line = transfer_line(samples, most_bytes_per_s)
    fastest = max(line.bytes_per_s.values())
    shares = {kind: rate / fastest for kind, rate in line.bytes_per_s.items()}
    # One kind's share is the link's, the others stand by themselves; what was not measured (all-to-all) goes
    # by the link's, so it is the kind in the middle.
    middle = float(np.exp(np.mean(np.log([*shares.values()]))))
    usual = min(shares, key=lambda kind: abs(np.log(shares[kind] / middle)))
    link = {
        "name": name,
        "bytes_per_s": said.of(fastest, "the fastest kind of transfer, every rank at once"),
        "latency_s": said.of(
            line.latency_s, f"of a step; the line meets its points to {100 * line.error:.0f} %"
        ),
        "efficiency": said.of(shares[usual], f"{usual}, the kind nearest to the mean of all"),
    }
    others = {kind: said.of(share) for kind, share in shares.items() if kind != usual}
    return {**link, "collective_efficiency": others} if others else link
