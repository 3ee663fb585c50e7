"""Numbers of a user's cluster file that are legal and look like another unit."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqplan import profiles
from seqplan.planner.errors import SeqplanError
from seqplan.profiles.link_doubts import link_doubts


def written(tmp_path: Path, keys: str) -> list[str]:
    path = tmp_path / "cluster.yaml"
    path.write_text(f"base: dgx-h100\nnum_nodes: 2\n{keys}\n", encoding="utf-8")
    return link_doubts(profiles.load_cluster(path))


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        # 400 Gb/s and 10 Gb/s as they are sold, in the wrong unit; a port of 3,200 Gb/s is a whole node's.
        ("inter_node: {base: ib-ndr, bytes_per_s: 400 GB/s}", "fastest network ports make 100 GB/s"),
        ("inter_node: {base: efa-400, bytes_per_s: 3200 Gb/s}", "nics_per_node times this number"),
        ("inter_node: {base: ethernet-10g, bytes_per_s: 10 GB/s}", "is 8 times what ethernet-10g makes"),
        ("inter_node: {base: ib-ndr, bytes_per_s: 50 Gb/s}", "is an eighth of what ib-ndr makes"),
        ("intra_node: {base: nvlink4, bytes_per_s: 450 Gb/s}", "is an eighth of what nvlink4 makes"),
        # Both ways added, as vendors print it.
        ("intra_node: {base: nvlink4, bytes_per_s: 900 GB/s}", "is twice what nvlink4 makes one way"),
        ("intra_node: {base: pcie4x16, bytes_per_s: 64 GB/s}", "is twice what pcie4x16 makes one way"),
        ("intra_node: ib-ndr\ninter_node: nvlink4", "are the two swapped"),
        ("nics_per_node: 64", "it counts the ports of one node"),
        ("inter_node: {base: ib-ndr, latency_s: 5 ms}", "hosts of one site take 1 to 100 us"),
    ],
)
def test_another_unit_is_asked_about(tmp_path: Path, keys: str, says: str) -> None:
    doubts = written(tmp_path, keys)
    assert any(says in text for text in doubts), doubts


@pytest.mark.parametrize(
    "keys",
    [
        "",
        "inter_node: {base: ib-ndr, efficiency: 0.5}",
        "inter_node: {base: ib-hdr, bytes_per_s: 400 Gb/s}",  # a faster port of the same kind
        "inter_node: {base: ib-ndr, bytes_per_s: 200 Gb/s}",  # half a port
        "inter_node: ib-xdr",
        "nics_per_node: 32\ninter_node: efa-100",
        "gpus_per_node: 4\ninter_node: nvlink4\nnics_per_node: 4",  # NVLink between the trays of a rack
    ],
)
def test_plausible_numbers_are_not(tmp_path: Path, keys: str) -> None:
    assert written(tmp_path, keys) == []


def test_a_measured_link_is_not(tmp_path: Path) -> None:
    rate = "bytes_per_s: {value: 1.1e9, source: measured by seqplan calibrate on 2026-01-01}"
    keys = f"intra_node: {{base: nvlink4, {rate}}}\ninter_node: ethernet-10g"
    assert written(tmp_path, keys) == []
    assert written(tmp_path, keys.replace("measured by seqplan calibrate", "guessed")) != []


def test_no_built_in_cluster_is_doubted() -> None:
    for name in profiles.cluster_names():
        assert link_doubts(profiles.load_cluster(name)) == []


def test_nodes_that_differ_are_refused_with_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(SeqplanError) as caught:
        written(tmp_path, "nics_per_node: [8, 4]")
    assert "nics_per_node is a list" in caught.value.message
    assert "write the least that any node has" in caught.value.message
