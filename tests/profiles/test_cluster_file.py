"""A user's files: clusters short and long, what is wrong with them, and files that are something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from seqplan import profiles
from seqplan.planner.cluster_spec import DeviceSpec
from seqplan.planner.errors import SeqplanError

GOOD = """\
name: lab
device: a100-80
gpus_per_node: 8
num_nodes: 2
intra_node: nvlink3
inter_node: {base: ib-hdr, bytes_per_s: 200 Gb/s}
nics_per_node: 8
communicator_bytes: 200 MiB
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "lab.yaml"


def load_error(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SeqplanError) as error:
        profiles.load_cluster(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


def test_a_short_file_is_a_whole_cluster(file: Path) -> None:
    file.write_text(GOOD)
    lab = profiles.load_cluster(file)
    assert (lab.name, lab.world_size, lab.device.name) == ("lab", 16, "a100-80")
    assert lab.inter_node.bytes_per_s == 25e9  # 200 Gb/s
    assert lab.inter_node.bytes_per_s.source == "user file lab.yaml"
    assert lab.inter_node.latency_s.source == profiles.load_cluster("dgx-a100").inter_node.latency_s.source
    assert lab.communicator_bytes == 200.0 * 2**20


def test_a_shorter_one_changes_a_built_in_cluster(file: Path) -> None:
    file.write_text("base: dgx-a100\nname: lab\ngpus_per_node: 7\nnum_nodes: 1\n")
    lab = profiles.load_cluster(str(file))
    assert lab.world_size == 7
    assert lab.device == profiles.load_cluster("dgx-a100").device


def test_the_long_form_is_what_a_plan_writes(file: Path) -> None:
    cluster = profiles.load_cluster("dgx-h100")
    file.write_text(yaml.safe_dump(cluster.model_dump(mode="json")))
    assert profiles.load_cluster(file) == cluster
    file.write_text(json.dumps(cluster.model_dump(mode="json")))
    assert profiles.load_cluster(file) == cluster


def test_changes_to_a_device(file: Path) -> None:
    device = "{base: a100-80, memory_bytes: 75 GiB, peak_flops_per_s: {bf16: 250 TFLOP/s}}"
    file.write_text(GOOD.replace("a100-80", device))
    found = profiles.load_cluster(file).device
    assert found.name == "a100-80 (changed)"
    assert found.memory_bytes == 75.0 * 2**30
    assert {dtype: float(peak) for dtype, peak in found.peak_flops_per_s.items()} == {
        "fp32": 19.5e12,
        "fp16": 312e12,
        "bf16": 250e12,
    }


def _fields(data: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, value in data.items():
        found.append((*path, key))
        if key in ("device", "intra_node", "inter_node"):
            found += _fields(value, (*path, key))
    return found


def test_every_field_left_out_is_named(file: Path) -> None:
    whole = profiles.load_cluster("dgx-h100").model_dump(mode="json")
    free = {("device", name) for name, field in DeviceSpec.model_fields.items() if not field.is_required()}
    free |= {(link, "collective_efficiency") for link in ("intra_node", "inter_node")}
    for path in _fields(whole):
        data = json.loads(json.dumps(whole))
        parent = data if len(path) == 1 else data[path[0]]
        del parent[path[-1]]
        if path in {*free, ("cores_per_node",)}:
            file.write_text(yaml.safe_dump(data))
            assert profiles.load_cluster(file).name == "dgx-h100"
        else:
            assert f"missing {'.'.join(path)}." in load_error(file, yaml.safe_dump(data))


def test_all_missing_fields_are_named_at_once(file: Path) -> None:
    message = load_error(file, "name: lab\ndevice: a100-80\n")
    missing = "gpus_per_node, num_nodes, intra_node, inter_node, nics_per_node, communicator_bytes"
    assert f"missing {missing}. A short file starts from a built-in cluster" in message


def bandwidth(value: str) -> str:
    return GOOD.replace("200 Gb/s", value)


def memory(value: str) -> str:
    return GOOD.replace("a100-80", f"{{base: a100-80, memory_bytes: {value}}}")


WRONG: list[tuple[str, str]] = [
    (GOOD.replace("gpus_per_node: 8", "gpus_per_node: 0"), "gpus_per_node = 0 must be at least 1"),
    (GOOD.replace("num_nodes: 2", "num_nodes: -1"), "num_nodes = -1 must be at least 1"),
    (GOOD.replace("gpus_per_node: 8", "gpus_per_node: 8.5"), "gpus_per_node = 8.5 must be a whole number"),
    (GOOD.replace("gpus_per_node: 8", 'gpus_per_node: "8"'), 'gpus_per_node = "8" must be a whole number'),
    (GOOD.replace("gpus_per_node: 8", "gpus_per_node: true"), "gpus_per_node = true must be a whole number"),
    (GOOD.replace("num_nodes: 2", "num_nodes: 010"), "line 4: num_nodes: 010"),
    (GOOD + "num_nodes: 4\n", "num_nodes is given twice, 2 in line 4 and 4 here"),
    (GOOD.replace("a100-80", "no"), "line 2: device: no is a truth value"),
    (GOOD.replace("a100-80", "H10O-80GB"), "device = H10O-80GB is not built in; did you mean h100-sxm"),
    (GOOD.replace("a100-80", "7"), "device = 7 must be a group of keys"),
    (GOOD.replace("a100-80", "[a100-80, v100-32]"), "device is a list: a cluster has one kind of device"),
    (GOOD.replace("nvlink3", "nvlink9"), "intra_node = nvlink9 is not built in; did you mean"),
    (GOOD.replace("ib-hdr", "ib-hd"), "inter_node.base = ib-hd is not built in; did you mean ib-hdr"),
    (GOOD.replace("num_nodes", "num_node"), "unknown key num_node (did you mean num_nodes?)"),
    (
        GOOD.replace("bytes_per_s", "bytes_per_sec"),
        "unknown key inter_node.bytes_per_sec (did you mean bytes_per_s?)",
    ),
    (bandwidth(".nan"), "inter_node.bytes_per_s = nan must be a finite number"),
    (bandwidth(".inf"), "inter_node.bytes_per_s = inf must be a finite number"),
    (bandwidth("-.inf"), "inter_node.bytes_per_s = -inf must be a finite number"),
    (bandwidth("0"), "inter_node.bytes_per_s = 0 must be more than 0"),
    (bandwidth("-25e9"), "inter_node.bytes_per_s = -2.5e+10 must not be negative"),
    (bandwidth("200"), "bytes_per_s = 200 is no link's rate; write it as 50 GB/s"),
    (bandwidth("3:20"), "inter_node.bytes_per_s: 3:20"),
    (bandwidth("200 gb/s"), "unit 'gb/s' of '200 gb/s' does not fit here; write 50 GB/s or 400 Gb/s (bits)"),
    (bandwidth("200 GB"), "unit 'GB'"),
    (bandwidth('"200"'), "write the number without quotes"),
    (bandwidth("fast"), "'fast' is not a number with a unit"),
    (bandwidth("[1, 2]"), "inter_node.bytes_per_s must be a number, not a list"),
    (bandwidth("true"), "inter_node.bytes_per_s must be a number, not a truth value"),
    (bandwidth("null"), "inter_node.bytes_per_s must be a number, not nothing (null)"),
    (memory("-80 GiB"), "device.memory_bytes = -8.58993e+10 must not be negative"),
    (memory("80"), "memory_bytes = 80 bytes is no device's memory; write it as 80 GiB"),
    (memory("80G"), "unit 'G' of '80G' does not fit here; write 80 GiB (2^30) or 80 GB (10^9)"),
    (memory("85899345920 GB"), "is no device's memory"),
    (memory("{value: 80 GiB, source: }"), "source must say where the number comes from"),
    (GOOD.replace("a100-80", "cpu"), "missing cores_per_node"),
    (GOOD + "cores_per_node: 4\n", "cores_per_node is for CPUs, and the device a100-80 is none"),
    (GOOD.replace("communicator_bytes: 200 MiB", "communicator_bytes: 84 %"), "communicator_bytes: unit '%'"),
    ("base: dgx-a10\nname: lab\n", "base = dgx-a10 is not built in; did you mean dgx-a100"),
    (
        "nodes:\n  - {gpus: 2, gpu: v100-32}\n  - {gpus: 1, gpu: a100-40}\n",
        "nodes is a list: a cluster has one kind",
    ),
]


@pytest.mark.parametrize(("text", "said"), WRONG, ids=[said[:48] for _, said in WRONG])
def test_wrong_files(file: Path, text: str, said: str) -> None:
    assert said in load_error(file, text)


def test_everything_wrong_is_told_at_once(file: Path) -> None:
    text = bandwidth("-5").replace("a100-80", "A100-80GB").replace("gpus_per_node: 8", "gpus_per_node: 0")
    message = load_error(file, text.replace("nics_per_node: 8\n", ""))
    for said in (
        "did you mean a100-80",
        "gpus_per_node = 0 must be at least 1",
        "inter_node.bytes_per_s = -5 must not be negative",
        "missing nics_per_node",
    ):
        assert said in message
    assert "missing device" not in message


def test_keys_of_other_tools_are_translated(file: Path) -> None:
    message = load_error(file, "gpu: A100\nnodes: 2\ngpu_memory_gb: -80\ninter_node_bandwidth_gbps: 200\n")
    assert 'unknown key gpu (here "A100"): write device: NAME' in message
    assert "unknown key nodes (here 2): write num_nodes" in message
    assert (
        "unknown key gpu_memory_gb (here -80): write device: {base: a100-80, memory_bytes: 80 GiB}" in message
    )
    assert "unknown key inter_node_bandwidth_gbps (here 200): write inter_node: {base: LINK" in message


@pytest.mark.parametrize("value", ["80GiB", "80 GiB", "85899345920", "8.589934592e10", "85.89934592 GB"])
def test_ways_to_write_a_number(file: Path, value: str) -> None:
    file.write_text(memory(value))
    assert profiles.load_cluster(file).device.memory_bytes == 80.0 * 2**30


OTHER_FILES: list[tuple[str, str, str]] = [
    (
        "x.yaml",
        "model_type: llama\nhidden_size: 4096\n",
        "describes a model, not a cluster. MODEL and --cluster",
    ),
    (
        "config.json",
        '{\n\t"model_type": "llama"}',
        "is a model's config.json, not a cluster. MODEL and --cluster",
    ),
    ("plan.yaml", "schema: seqplan/1\nlayout: {dp: 1}\n", "is a plan, not a cluster"),
]


@pytest.mark.parametrize(("name", "text", "said"), OTHER_FILES)
def test_other_files_in_place_of_a_cluster(tmp_path: Path, name: str, text: str, said: str) -> None:
    assert said in load_error(tmp_path / name, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD, "describes a cluster, not a model. MODEL and --cluster are swapped."),
        ("schema: seqplan/1\nlayout: {dp: 1}\n", "is a plan, not a model"),
        ("model_type: llama\nhidden_size: 4096\n", "has the keys of a config.json, which is JSON"),
        ("name: m\nnum_layers: -4\n", "num_layers = -4 must be at least 1"),
    ],
)
def test_yaml_in_place_of_a_model(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    with pytest.raises(SeqplanError) as error:
        profiles.load_model(file)
    assert said in str(error.value)


def test_a_users_model_in_yaml(file: Path) -> None:
    model, _ = profiles.load_model("tiny")
    file.write_text(yaml.safe_dump({**model.model_dump(mode="json"), "name": "mine", "source": "made up"}))
    mine, notes = profiles.load_model(file)
    assert mine == model.model_copy(update={"name": "mine"})
    assert notes == [f"{file}: made up"]


def test_a_config_json_is_read_by_its_own_reader(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
        "max_position_embeddings": 32,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "config.json"):
        assert profiles.load_model(path)[0].num_layers == 3


def test_a_file_named_like_a_built_in_model_is_mentioned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    assert "for the file or folder of that name write ./gpt2" in profiles.load_model("gpt2")[1][1]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("meta-llama/Meta-Llama-3-8B", "looks like a Hugging Face hub id, and nothing is downloaded"),
        ("./none.json", "./none.json: no such file"),
        ("a/b/c", "a/b/c: no such file"),
        ("x" * 5000, "is not built in"),
        ("a\0b", "is not built in"),
    ],
)
def test_models_that_are_not_there(name: str, said: str) -> None:
    with pytest.raises(SeqplanError) as error:
        profiles.load_model(name)
    assert said in str(error.value)


def test_a_cluster_file_that_is_not_there(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "none.yaml", "no such file"), (tmp_path, "is a folder")):
        with pytest.raises(SeqplanError, match=said):
            profiles.load_cluster(path)


def test_a_changed_cluster_is_named_after_its_file_where_it_says_no_name(file: Path) -> None:
    file.write_text("base: dgx-a100\nnum_nodes: 4\n", encoding="utf-8")
    assert profiles.load_cluster(file).name == "lab"
    file.write_text("base: dgx-a100\nname: mine\n", encoding="utf-8")
    assert profiles.load_cluster(file).name == "mine"
    assert "missing name" in load_error(file, GOOD.replace("name: lab\n", ""))
