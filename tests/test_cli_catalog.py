"""`clusters`: the devices and links behind the clusters, and rates that people can read."""

from __future__ import annotations

import json

import pytest

from seqplan import profiles
from tests.command_line import Seqplan, refusal, runner


@pytest.fixture
def seqplan(capsys: pytest.CaptureFixture[str]) -> Seqplan:
    return runner(capsys)


def test_devices_and_links_are_listed(seqplan: Seqplan) -> None:
    done = seqplan("clusters", "--devices")
    assert done.status == 0
    rows = {line.split()[0]: line.split() for line in done.out.splitlines() if line}
    assert set(profiles.device_names()) <= set(rows)
    assert {"nvlink4", "ib-ndr", "pcie4x16"} <= set(rows)
    # RTX A6000 datasheet: 768 GB/s, 309.7 TFLOP/s with sparsity, half of it dense.
    assert rows["a6000"] == ["a6000", "sm_86", "47.40", "768", "GB/s", "155", "fp16"]
    # NDR: 400 Gb/s one way.
    assert rows["ib-ndr"][:3] == ["ib-ndr", "50.0", "GB/s"]
    listed = json.loads(seqplan("clusters", "--devices", "--json").out)
    assert listed["schema"] == "seqplan-json/1"
    assert tuple(device["name"] for device in listed["devices"]) == profiles.device_names()
    assert "source" in listed["links"][0]["bytes_per_s"]


def test_a_device_or_a_link_is_shown_by_its_name(seqplan: Seqplan) -> None:
    shown = seqplan("clusters", "a6000")
    assert shown.status == 0
    assert shown.out.startswith("Device a6000 (sm_86)\n")
    assert "154.8 TFLOP/s" in shown.out
    assert "NVIDIA RTX A6000 datasheet (2021)" in shown.out
    assert seqplan("clusters", "nvlink4").out.startswith("Link nvlink4\n")
    assert json.loads(seqplan("clusters", "a6000", "--json").out)["architecture"] == "sm_86"
    assert "Give one of the two" in refusal(seqplan("clusters", "a6000", "--devices"))


def test_rates_are_never_in_powers_of_ten(seqplan: Seqplan) -> None:
    for typed in (["clusters"], ["clusters", "--devices"]):
        listed = seqplan(*typed).out
        assert "e+" not in listed
        assert " 2,250 fp16" in listed, "the B200 computes 2.25 dense PFLOP/s"


def test_more_nodes_than_listed_are_noted_once(seqplan: Seqplan) -> None:
    sizes = ["--cluster", "dgx-h100", "--seq-len", "4096", "--global-batch-size", "160"]
    said = "dgx-h100 lists 8 nodes, and 20 are planned for, with the same links between them."
    answer = json.loads(seqplan("suggest", "llama3-8b", *sizes, "--nodes", "20", "--json").out)
    assert answer["notes"].count(said) == 1
    answer = json.loads(seqplan("suggest", "llama3-8b", *sizes, "--nodes", "8", "--json").out)
    assert not any("are planned for" in note for note in answer["notes"])
