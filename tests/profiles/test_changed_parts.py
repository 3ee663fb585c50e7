"""A cluster file that changes numbers of its base's device or links: all else stays, with its source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from seqplan import profiles
from seqplan.planner import units
from seqplan.planner.cluster_spec import ClusterSpec, DeviceSpec, LinkSpec
from seqplan.planner.errors import SeqplanError
from seqplan.planner.spec import Spec
from seqplan.profiles import parts, this_machine

PARTS = ("device", "intra_node", "inter_node")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "lab.yaml"


def loaded(file: Path, data: dict[str, Any]) -> dict[str, Any]:
    """The cluster as plain values."""
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    return profiles.load_cluster(file).model_dump(mode="json")


def refused(file: Path, data: dict[str, Any]) -> str:
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    with pytest.raises(SeqplanError) as error:
        profiles.load_cluster(file)
    return str(error.value)


def numbers(part: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Paths of all {value, source} of a part."""
    found = []
    for key, each in part.items():
        if isinstance(each, dict):
            found += [(*path, key)] if {*each} == {"value", "source"} else numbers(each, (*path, key))
    return found


def nested(path: tuple[str, ...], value: Any) -> Any:
    return {path[0]: nested(path[1:], value)} if path else value


def put(data: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = value


@pytest.mark.parametrize("base", ["dgx-h100", "mi300x-8"])
@pytest.mark.parametrize("part", PARTS)
def test_any_one_number_of_a_part_may_be_changed(file: Path, base: str, part: str) -> None:
    """Also those in tables by dtype."""
    whole = profiles.load_cluster(base).model_dump(mode="json")
    paths = numbers(whole[part])
    assert len(paths) >= 3
    for path in paths:
        before: Any = whole[part]
        for key in path:
            before = before[key]
        plain = 0.9 * before["value"]
        given = ((plain, "user file lab.yaml"), ({"value": plain, "source": "our own test"}, "our own test"))
        for written, source in given:
            expected = {**whole, "name": "lab", part: yaml.safe_load(yaml.safe_dump(whole[part]))}
            expected[part]["name"] += " (changed)"
            put(expected[part], path, {"value": plain, "source": source})
            assert loaded(file, {"base": base, part: nested(path, written)}) == expected


@pytest.mark.parametrize("spec", [ClusterSpec, DeviceSpec, LinkSpec])
def test_every_number_with_a_source_may_be_a_plain_one(spec: type[Spec]) -> None:
    """Its dimension is in its name, also where the name is that of a table by dtype."""
    named = [name for name, field in spec.model_fields.items() if "Quantity" in str(field)]
    assert named
    assert [name for name in named if units.dimension_of(name) is None] == []


def test_several_parts_may_be_changed_at_once(file: Path) -> None:
    found = loaded(
        file,
        {
            "base": "dgx-h100",
            "inter_node": {"efficiency": 0.7},
            "device": {"memory_bytes": "75 GiB", "attention_kernels": {"bf16": ["math"]}},
        },
    )
    base = profiles.load_cluster("dgx-h100").model_dump(mode="json")
    assert found["intra_node"] == base["intra_node"]
    assert found["inter_node"]["efficiency"]["value"] == 0.7
    assert found["device"]["memory_bytes"]["value"] == 75 * 2**30
    kernels = {**base["device"]["attention_kernels"], "bf16": ["math"]}
    assert found["device"]["attention_kernels"] == kernels


def test_a_part_with_a_base_of_its_own_takes_nothing_from_the_cluster(file: Path) -> None:
    found = loaded(file, {"base": "dgx-h100", "inter_node": {"base": "ib-edr", "efficiency": 0.7}})
    edr = parts.load_link("ib-edr")
    whole = edr.model_dump(mode="json")
    assert found["inter_node"]["latency_s"] == whole["latency_s"]
    assert found["inter_node"]["name"] == "ib-edr (changed)"


def test_a_part_with_a_name_of_its_own_is_another_one(file: Path) -> None:
    message = refused(file, {"base": "dgx-h100", "inter_node": {"name": "ours", "efficiency": 0.7}})
    assert message == (
        f"{file}: missing inter_node.bytes_per_s, inter_node.latency_s. A part with a name is another one, "
        "written out in full; without inter_node.name it changes the base's."
    )


@pytest.mark.parametrize("empty", [{}, None])
def test_a_part_that_changes_nothing(file: Path, empty: Any) -> None:
    data = {"base": "dgx-h100", "inter_node": empty}
    if empty is None:
        assert "inter_node = None must be a group of keys, not nothing (null)." in refused(file, data)
    else:
        assert loaded(file, data)["inter_node"]["name"] == "ib-ndr"


@pytest.mark.parametrize(
    ("part", "changes", "said"),
    [
        ("inter_node", {"efficency": 0.7}, "unknown key inter_node.efficency (did you mean efficiency?)."),
        ("inter_node", {"efficiency": 7}, "inter_node.efficiency = 7 must be more than 0 and at most 1"),
        (
            "inter_node",
            {"efficiency": {"source": "ours"}},
            "inter_node.efficiency: a number needs {value: ..., source: ...}",
        ),
        ("device", {"memory_bytes": "80 G"}, "device.memory_bytes: unit 'G' of '80 G' does not fit here"),
        (
            "device",
            {"peak_flops_per_s": {"bf17": 1e12}},
            "device.peak_flops_per_s has the key bf17, which must be one of fp32",
        ),
    ],
)
def test_errors_name_what_is_wrong_and_nothing_that_the_base_has(
    file: Path, part: str, changes: dict[str, Any], said: str
) -> None:
    message = refused(file, {"base": "dgx-h100", part: changes})
    assert said in message
    assert "missing" not in message
    assert "short file" not in message


def test_an_unknown_base_is_all_that_is_said(file: Path) -> None:
    for changes in ({}, {"inter_node": {"efficiency": 0.7}}, {"device": "cpu"}):
        message = refused(file, {"base": "dgx-h100x", **changes})
        said = f"{file}: base = dgx-h100x is not built in; did you mean dgx-h100 or dgx-h200? built in are "
        assert message == f"{said}{', '.join(profiles.cluster_names())}."
    message = refused(file, {"base": "dgx-h100x", "num_nodes": 0})
    assert message.endswith("; num_nodes = 0 must be at least 1.")


def test_a_file_based_on_this_machine(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`local` has its cores and its memory, which its ranks share."""
    monkeypatch.setattr(this_machine, "core_count", lambda: 2)
    monkeypatch.setattr(this_machine, "memory_bytes", lambda: 24 * 2**30)
    usual = loaded(file, {"base": "local", "device": {"matmul_efficiency": 0.5}})
    assert (usual["gpus_per_node"], usual["cores_per_node"]) == (2, 2)
    assert usual["device"]["memory_bytes"]["value"] == 12 * 2**30
    assert usual["device"]["matmul_efficiency"] == {"value": 0.5, "source": "user file lab.yaml"}
    more = loaded(file, {"base": "local", "gpus_per_node": 8})
    assert (more["gpus_per_node"], more["cores_per_node"]) == (8, 2)
    assert more["device"]["memory_bytes"]["value"] == 3 * 2**30
