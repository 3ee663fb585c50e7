"""Collectives on the links that a group really uses: times by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from seqplan.planner.choosing.layout_table import from_layout
from seqplan.planner.cluster_spec import ClusterSpec
from seqplan.planner.collectives import Group, Network
from tests.planner.formula_cases import cluster, decoder, layout, question

EXACT = 1e-12
GB = 1e9


def network_and_group(
    axes: tuple[str, ...], gpus: int, on: ClusterSpec | None = None, **fields: Any
) -> tuple[Network, Group]:
    """The group of `axes` in a layout of `gpus` ranks."""
    asked = question(decoder(num_layers=64), gpus=gpus, on=on or cluster(), global_batch_size=4096)
    network = Network.of(asked)
    return network, network.group(from_layout(layout(asked, **fields), asked.train), axes)


@pytest.mark.parametrize(
    ("axes", "fields", "size", "per_node"),
    [
        # 64 ranks on nodes of 8; order pp, dp, sp, tp, the last fastest.
        (("tp",), {"dp": 8, "tp": 8}, 8, 8),
        (("dp",), {"dp": 8, "tp": 8}, 8, 1),
        (("sp",), {"dp": 4, "sp": 4, "tp": 4}, 4, 2),
        (("dp",), {"dp": 4, "sp": 4, "tp": 4}, 4, 1),
        (("dp", "sp"), {"dp": 4, "sp": 4, "tp": 4}, 16, 2),
        (("dp", "sp"), {"dp": 16, "sp": 4}, 64, 8),
        (("pp",), {"pp": 8, "tp": 8}, 8, 1),
        (("pp",), {"pp": 16, "dp": 4}, 16, 2),
        (("tp",), {"dp": 64}, 1, 1),
        # Another order: pp innermost stays inside a node.
        (("pp",), {"pp": 8, "tp": 8, "mesh_order": ["dp", "sp", "tp", "pp"]}, 8, 8),
        (("tp",), {"pp": 8, "tp": 8, "mesh_order": ["dp", "sp", "tp", "pp"]}, 8, 1),
    ],
)
def test_ranks_of_a_group_on_a_node(
    axes: tuple[str, ...], fields: dict[str, Any], size: int, per_node: int
) -> None:
    _, group = network_and_group(axes, 64, **fields)
    assert (group.size[0], group.ranks_per_node[0]) == (size, per_node)


def test_a_group_that_does_not_divide_the_node_is_cut_somewhere() -> None:
    # tp 4 on nodes of 6: ranks 4 to 7 lie on two nodes.
    on = cluster(gpus_per_node=6)
    _, cut = network_and_group(("tp",), 24, on, dp=6, tp=4)
    assert cut.ranks_per_node[0] == 2
    assert not cut.inside_node[0]
    _, fits = network_and_group(("tp",), 24, on, dp=8, tp=3)
    assert fits.inside_node[0]
    _, single_node = network_and_group(("tp",), 4, on, tp=4)
    assert single_node.inside_node[0]


def test_collectives_inside_a_node() -> None:
    network, group = network_and_group(("tp",), 8, cluster(latency_s=1e-6), tp=8)
    # 7 steps of 1 us; 7/8 of 1 GB at 100 GB/s.
    assert network.all_gather_s(GB, group)[0] == pytest.approx(7e-6 + 7 / 8 * 0.01, rel=EXACT)
    assert network.reduce_scatter_s(GB, group)[0] == network.all_gather_s(GB, group)[0]
    # An all-reduce moves twice as much; over 8 ranks its trees wait 6 steps.
    assert network.all_reduce_s(GB, group)[0] == pytest.approx(6e-6 + 2 * 7 / 8 * 0.01, rel=EXACT)
    # In four messages it waits four times.
    assert network.all_gather_s(GB, group, 4)[0] == pytest.approx(28e-6 + 7 / 8 * 0.01, rel=EXACT)
    assert network.neighbour_s(GB, group)[0] == pytest.approx(1e-6 + 0.01, rel=EXACT)


@pytest.mark.parametrize(
    ("axes", "fields", "bytes_per_s"),
    [
        # Whole nodes: the group has all 8 NICs of 10 GB/s, less than the 100 GB/s inside.
        (("dp",), {"dp": 64}, 80 * GB),
        # One rank a node, 8 groups: a NIC each.
        (("dp",), {"dp": 8, "tp": 8}, 10 * GB),
        # Two ranks a node: two NICs.
        (("sp",), {"dp": 4, "sp": 4, "tp": 4}, 20 * GB),
    ],
)
def test_groups_share_the_nics(axes: tuple[str, ...], fields: dict[str, Any], bytes_per_s: float) -> None:
    network, group = network_and_group(axes, 64, **fields)
    n = group.size[0]
    assert network.all_gather_s(GB, group)[0] == pytest.approx((n - 1) / n * GB / bytes_per_s, rel=EXACT)


@pytest.mark.parametrize(
    ("nics", "per_flow"),
    [
        (8, 10 * GB),  # four flows leave the node, a NIC each at most
        (2, 5 * GB),  # they share two
        (1, 2.5 * GB),
    ],
)
def test_a_ring_over_nodes_goes_at_the_pace_of_its_slowest_pair(nics: int, per_flow: float) -> None:
    # tp 4, sp 4: rings of two ranks a node; four rings on each node, one rank of each sends over a NIC.
    network, group = network_and_group(("sp",), 64, cluster(nics_per_node=nics), dp=4, sp=4, tp=4)
    assert network.neighbour_s(GB, group)[0] == pytest.approx(GB / per_flow, rel=EXACT)


@pytest.mark.parametrize(
    ("gpus_per_node", "axes", "fields", "sharing"),
    [
        # Counted by hand, rank by rank, on four nodes.
        (3, ("tp",), {"tp": 2, "dp": 6}, 1),  # pairs 0-1, 2-3, ...: one pair is cut at every second end
        (6, ("tp",), {"tp": 8, "dp": 3}, 2),  # the second node holds ranks of two groups of 8
        (6, ("pp",), {"pp": 3, "tp": 4, "dp": 2}, 6),  # every rank sends to another node
        (4, ("dp", "sp"), {"dp": 2, "pp": 2, "sp": 2, "tp": 2, "mesh_order": ["dp", "pp", "sp", "tp"]}, 2),
        (8, ("sp",), {"sp": 4, "tp": 8}, 8),
    ],
)
def test_groups_that_use_the_nics_at_once(
    gpus_per_node: int, axes: tuple[str, ...], fields: dict[str, Any], sharing: int
) -> None:
    on = cluster(gpus_per_node=gpus_per_node, num_nodes=4, inter=1e9, intra=1e15, nics_per_node=1)
    network, group = network_and_group(axes, 4 * gpus_per_node, on, **fields)
    n = group.size[0]
    seconds = network.all_gather_s(GB, group)[0]
    assert seconds == pytest.approx((n - 1) / n * sharing, rel=EXACT)
    assert network.neighbour_s(GB, group)[0] == pytest.approx(sharing, rel=EXACT)


def test_a_group_of_one_costs_nothing() -> None:
    network, group = network_and_group(("sp",), 64, cluster(latency_s=1e-3), dp=64)
    for seconds in (network.all_reduce_s, network.all_gather_s, network.neighbour_s):
        assert seconds(GB, group)[0] == 0.0


def test_whole_nodes_against_one_gpu_a_node_as_measured() -> None:
    # NCCL 2.27.5, nodes of 8 H100, 16 nodes: 387 GB/s with 8 GPUs of each node, 51 GB/s with one
    # (autoparallel's tables).
    on = cluster(num_nodes=16, inter=50e9 * 0.97, intra=450e9)
    network, whole = network_and_group(("dp",), 128, on, dp=128)
    _, single = network_and_group(("dp",), 128, on, dp=16, tp=8)

    def bus_bytes_per_s(group: Group) -> float:
        n = float(group.size[0])
        return float((n - 1) / n * GB / network.all_gather_s(GB, group)[0])

    assert bus_bytes_per_s(whole) == pytest.approx(387 * GB, rel=0.05)
    assert bus_bytes_per_s(single) == pytest.approx(51 * GB, rel=0.06)


@pytest.mark.parametrize(("gpus", "gather_us", "reduce_us"), [(2, 8, 10), (4, 17, 15), (8, 30, 31)])
def test_latencies_on_nvswitch_as_measured(gpus: int, gather_us: float, reduce_us: float) -> None:
    # Small collectives on one H100 node (autoparallel's table of NCCL), 4.3 us a step.
    network, group = network_and_group(("tp",), gpus, cluster(latency_s=4.3e-6), tp=gpus)
    assert network.all_gather_s(1.0, group)[0] * 1e6 == pytest.approx(gather_us, rel=0.5)
    assert network.all_reduce_s(1.0, group)[0] * 1e6 == pytest.approx(reduce_us, rel=0.6)


def test_trees_shorten_the_all_reduce_of_many_ranks() -> None:
    # 64 ranks: 63 steps of a ring, 12 of a tree up and down.
    network, group = network_and_group(("dp",), 64, cluster(latency_s=1e-6), dp=64)
    ring, tree = network.all_gather_s(0.0, group)[0], network.all_reduce_s(0.0, group)[0]
    assert (ring, tree) == (pytest.approx(63e-6, rel=EXACT), pytest.approx(12e-6, rel=EXACT))


def test_a_group_as_a_grid() -> None:
    _, group = network_and_group(("dp", "sp"), 64, dp=16, sp=4)
    inner, outer = group.split(np.array([16.0]))
    assert (inner.size[0], inner.ranks_per_node[0]) == (16, 8)
    assert (outer.size[0], outer.ranks_per_node[0]) == (4, 1)
    inner, outer = group.split(np.array([4.0]))
    assert (inner.size[0], inner.ranks_per_node[0]) == (4, 4)
    assert (outer.size[0], outer.ranks_per_node[0]) == (16, 2)
