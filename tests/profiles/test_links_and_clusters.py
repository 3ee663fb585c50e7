"""Built-in links and clusters: the rates as published, the parts as sold."""

from __future__ import annotations

import pytest

from seqplan import profiles
from seqplan.profiles.cluster_file import cluster_from
from seqplan.profiles.resources import LINKS, profile_names, read_profile

GB = 1e9

# One way, per GPU or per NIC: half of what vendors print for NVLink and Infinity Fabric; PCIe at 128/130.
LINK_RATES: dict[str, float] = {
    "nvlink2": 6 * 25 * GB,
    "nvlink3": 12 * 25 * GB,
    "nvlink4": 18 * 25 * GB,
    "nvlink5": 18 * 50 * GB,
    "xgmi-mi300x": 7 * 64 * GB,
    "nvlink1": 4 * 20 * GB,
    "nvlink2-pair": 2 * 25 * GB,
    "nvlink-bridge": 300 * GB,
    "nvlink3-mesh": 12 * 25 * GB,
    "nvlink3-a800": 8 * 25 * GB,
    "nvlink4-h800": 8 * 25 * GB,
    "pcie3x16": 15.75 * GB,
    "pcie4x16": 31.5 * GB,
    "pcie5x16": 63 * GB,
    "pcie5x16-host": 63 * GB,
    "ib-fdr": 4 * 14.0625 * 64 / 66 / 8 * GB,
    "ib-edr": 12.5 * GB,
    "ib-hdr": 25 * GB,
    "ib-ndr": 50 * GB,
    "ib-xdr": 100 * GB,
    "opa-100": 12.5 * GB,
    "slingshot-11": 25 * GB,
    "efa-100": 12.5 * GB,
    "ethernet-1g": 0.125 * GB,
    "ethernet-25g": 3.125 * GB,
    "ethernet-50g": 6.25 * GB,
    "ethernet-200g": 25 * GB,
}

# Device, GPUs and NICs a node, link inside and between.
CLUSTERS: dict[str, tuple[str, int, int, str, str]] = {
    "piz-daint": ("p100-16", 1, 1, "pcie3x16", "aries"),
    "v100-4gpu": ("v100-32", 4, 4, "nvlink2", "opa-100"),
    "dgx-v100": ("v100-32", 8, 4, "nvlink2", "ib-edr"),
    "dgx-a100": ("a100-80", 8, 8, "nvlink3", "ib-hdr"),
    "dgx-h100": ("h100-sxm", 8, 8, "nvlink4", "ib-ndr"),
    "dgx-h200": ("h200", 8, 8, "nvlink4", "ib-ndr"),
    "dgx-b200": ("b200", 8, 8, "nvlink5", "ib-ndr"),
    "rtx4090-8": ("rtx4090", 8, 1, "pcie4x16-host", "ethernet-100g"),
    "l40s-8": ("l40s", 8, 2, "pcie4x16", "ethernet-100g"),
    "l20-8": ("l20", 8, 2, "pcie4x16", "ethernet-100g"),
    "h100-pcie-8": ("h100-pcie", 8, 2, "pcie5x16", "ethernet-200g"),
    "rtx3090-8": ("rtx3090", 8, 1, "pcie4x16-host", "ethernet-10g"),
    "t4-4": ("t4", 4, 1, "pcie3x16", "ethernet-50g"),
    "a10g-8": ("a10g", 8, 1, "pcie4x16-host", "ethernet-100g"),
    "p4d-a100": ("a100-40", 8, 4, "nvlink3", "efa-100"),
    "perlmutter": ("a100-40", 4, 4, "nvlink3-mesh", "slingshot-11"),
    "summit": ("v100-16", 6, 2, "nvlink2-pair", "ib-edr"),
    "h800-8": ("h100-sxm", 8, 8, "nvlink4-h800", "ib-ndr"),
    "a800-8": ("a100-80", 8, 8, "nvlink3-a800", "ib-hdr"),
    "h20-8": ("h20", 8, 8, "nvlink4", "ib-ndr"),
}


@pytest.mark.parametrize("name", LINK_RATES)
def test_link_rates_are_one_way(name: str) -> None:
    link = cluster_from(
        {**read_profile("hardware/clusters", "dgx-a100"), "intra_node": name}, "test"
    ).intra_node
    assert link.bytes_per_s == pytest.approx(LINK_RATES[name], rel=1e-3)


@pytest.mark.parametrize("name", CLUSTERS)
def test_clusters_are_built_of_the_right_parts(name: str) -> None:
    cluster = profiles.load_cluster(name)
    parts = (cluster.device.name, cluster.gpus_per_node, cluster.nics_per_node)
    assert (*parts, cluster.intra_node.name, cluster.inter_node.name) == CLUSTERS[name]
    assert cluster.name == name


def test_every_link_is_in_a_cluster_or_can_be_named_in_a_file() -> None:
    for name in profile_names(LINKS):
        data = {**read_profile("hardware/clusters", "dgx-a100"), "inter_node": name}
        assert cluster_from(data, "test").inter_node.name == name


@pytest.mark.parametrize(
    ("name", "links", "joins"),
    [
        ("nvlink1", 4, 1),
        ("nvlink2", 6, 2),
        ("nvlink3-mesh", 12, 4),
        ("xgmi-mi300x", 7, 1),
        ("nvlink4", 18, 18),
    ],
)
def test_a_pair_has_only_the_links_that_join_it(name: str, links: int, joins: int) -> None:
    """Without a switch a ring uses all links of a GPU, a transfer to one neighbour those between the two."""
    link = cluster_from(
        {**read_profile("hardware/clusters", "dgx-a100"), "intra_node": name}, "test"
    ).intra_node
    assert link.slowdown("neighbour") == pytest.approx(links / joins, rel=0.01)
    assert link.slowdown("all_gather") == 1.0
