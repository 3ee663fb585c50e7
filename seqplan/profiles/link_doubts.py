"""Rates of links in a user's cluster file that are legal and still look like another unit.

Gb/s and GB/s differ by 8, both ways and one way by 2, a node's rate and a port's by the number of ports. Such
a number plans well and wrong, so it is questioned, not refused: somebody may have the faster network.
"""

from __future__ import annotations

from collections.abc import Iterator

from seqplan.planner.cluster_spec import ClusterSpec, LinkSpec
from seqplan.planner.reading.quantity import Quantity
from seqplan.profiles.parts import load_link
from seqplan.profiles.resources import LINKS, profile_names

FASTEST_PORT = 100e9
"""Bytes a second of a network port: 800 Gb/s, InfiniBand XDR and 800 Gb Ethernet (IEEE 802.3df, 2024)."""

FASTEST_DEVICE_LINK = 1.8e12
"""One way, of one GPU: NVLink 6 (NVIDIA's announcement of Vera Rubin, 2025: 3.6 TB/s both ways)."""

LONG_LATENCY_S = 1e-3
"""More than hosts of one site take; between sites training is not what this plans."""

MOST_PORTS_A_GPU = 4
"""AWS p5.48xlarge: 32 network interfaces for 8 GPUs (AWS EC2 P5 instances, 2023)."""

SAME = 0.03
"""Relative difference up to which a ratio is taken for 2 or 8: 31.5 and 32 GB/s are both PCIe 4."""

BITS = "Gb/s are bits, GB/s are bytes"


def link_doubts(cluster: ClusterSpec) -> list[str]:
    """A warning for each number that the user wrote and that looks like another unit."""
    doubts = [*_of_link("intra_node", cluster.intra_node), *_of_link("inter_node", cluster.inter_node)]
    inside, between = cluster.intra_node.bytes_per_s, cluster.inter_node.bytes_per_s
    measured = inside.source.startswith("measured by seqplan calibrate")  # no slip of the pen
    if cluster.gpus_per_node > 1 and between > inside * (1 + SAME) and not measured:
        doubts.append(
            f"one port of inter_node ({_rate(between)}) is faster than intra_node is for one GPU "
            f"({_rate(inside)}): are the two swapped, or is one of them in bits?"
        )
    if cluster.nics_per_node > MOST_PORTS_A_GPU * cluster.gpus_per_node:
        doubts.append(
            f"nics_per_node = {cluster.nics_per_node} for {cluster.gpus_per_node} GPUs a node: it counts the "
            "ports of one node."
        )
    return doubts


def _typed(number: Quantity) -> bool:
    return number.source.startswith("user file")


def _of_link(key: str, link: LinkSpec) -> Iterator[str]:
    rate, latency = link.bytes_per_s, link.latency_s
    if _typed(rate):
        told = f"{key}.bytes_per_s = {_rate(rate)}"
        base = link.name.removesuffix(" (changed)")
        usual = float(load_link(base).bytes_per_s) if base in profile_names(LINKS) else None
        network = key == "inter_node" and not base.startswith("nvlink")
        if network and rate > FASTEST_PORT * (1 + SAME):
            yield (
                f"{told} a port, and the fastest network ports make {_rate(FASTEST_PORT)}: {BITS}; and "
                "a node's whole rate is nics_per_node times this number."
            )
        elif usual is not None and _is(rate / usual, 8):
            yield f"{told} is 8 times what {base} makes ({_rate(usual)}): {BITS}."
        elif usual is not None and _is(rate / usual, 1 / 8):
            yield f"{told} is an eighth of what {base} makes ({_rate(usual)}): {BITS}."
        elif key == "intra_node" and usual is not None and _is(rate / usual, 2):
            yield f"{told} is twice what {base} makes one way ({_rate(usual)}): vendors add both ways."
        elif rate > FASTEST_DEVICE_LINK * (1 + SAME):
            yield f"{told} is more than any GPU's link makes one way ({_rate(FASTEST_DEVICE_LINK)}): {BITS}."
    if _typed(latency) and latency >= LONG_LATENCY_S:
        yield f"{key}.latency_s = {latency * 1e3:g} ms for one message: hosts of one site take 1 to 100 us."


def _is(ratio: float, expected: float) -> bool:
    return abs(ratio / expected - 1) <= SAME


def _rate(bytes_per_s: float) -> str:
    """In both units, since it is the unit that is in doubt."""
    return f"{bytes_per_s / 1e9:,.4g} GB/s = {bytes_per_s * 8 / 1e9:,.4g} Gb/s"
