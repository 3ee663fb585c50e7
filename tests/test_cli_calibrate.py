"""The commands calibrate and fit: what they write is used at once, what they cannot use is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from seqplan import cli_inputs, profiles
from seqplan.runtime import calibrate as runtime
from tests.command_line import Done, Seqplan, refusal, runner
from tests.planner import calibrated, samples

TINY = ["tiny", "--seq-len", "512", "--global-batch-size", "8"]


@pytest.fixture
def seqplan(capsys: pytest.CaptureFixture[str]) -> Seqplan:
    return runner(capsys)


@pytest.fixture
def calibrates(seqplan: Seqplan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Seqplan:
    """`calibrate -o lab.yaml` of a machine that is made up."""
    asked: list[Any] = []

    def measure(nproc: int | None, device: str, seconds: float, progress: Any) -> Any:
        asked.append((nproc, device, seconds))
        progress("matmul", 0.5)
        return None if nproc == 3 else calibrated.measurements()

    monkeypatch.setattr(runtime, "measure", measure)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Done:
        return seqplan("calibrate", *arguments)

    return run


def test_a_calibrated_file_is_planned_for_at_once(calibrates: Seqplan, seqplan: Seqplan) -> None:
    done = calibrates("-o", "lab.yaml", "--nproc", "4")
    assert done.status == 0
    assert "4 ranks on 2 cores, all at work at once" in done.out
    assert done.err == "written: lab.yaml\n"  # no bar: this is no terminal
    answer = seqplan("suggest", *TINY, "--cluster", "lab.yaml")
    assert answer.status == 0
    assert "4 x measured-cpu of lab" in answer.out


def test_calibrate_as_json(calibrates: Seqplan) -> None:
    done = calibrates("--json")
    found = json.loads(done.out)
    assert found["schema"] == "seqplan-json/1"
    assert found["measured"]["launch_s"] == calibrated.LAUNCH_S
    assert found["cluster"] == profiles.load_cluster("cluster.yaml").model_dump(mode="json")


def test_only_the_first_rank_of_a_job_writes(calibrates: Seqplan) -> None:
    done = calibrates("--nproc", "3")
    assert (done.status, done.out, done.err) == (0, "", "")
    assert not Path("cluster.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--seconds", "0"], "--seconds 0 must be from 1 to 165."),
        (["--seconds", "1000"], "--seconds 1000 must be from 1 to 165."),
        (["-o", "lab.txt"], "-o lab.txt is not a YAML file. Name it such as cluster.yaml."),
        (
            ["-o", "none/lab.yaml"],
            "cannot write none/lab.yaml: the folder none does not exist. Make it first.",
        ),
        (["--device", "tpu"], "'tpu' is not one of"),
        (["--nproc", "many"], "'--nproc': it should be a valid integer"),
    ],
)
def test_calibrate_refuses_in_one_line(calibrates: Seqplan, arguments: list[str], says: str) -> None:
    assert says in refusal(calibrates(*arguments))


@pytest.mark.parametrize(
    ("called", "name"),  # torch.cuda.get_device_name of these cards
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 80GB HBM3", None),  # the SXM module does not say so
        ("Radeon RX 7900 XTX", None),
    ],
)
def test_a_datasheet_only_where_the_name_is_one_device(called: str, name: str | None) -> None:
    found = cli_inputs.known_device(called)
    assert (found and found.name) == name


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster file and two runs whose matmuls were 0.8 times as fast."""
    monkeypatch.chdir(tmp_path)
    base = profiles.load_cluster("dgx-a100")
    share = base.device.matmul_efficiency
    slower = base.device.model_copy(update={"matmul_efficiency": type(share)(0.8 * share, "truth")})
    true = base.model_copy(update={"device": slower})
    for name, fields in (("a", {"dp": 8}), ("b", {"dp": 2, "tp": 4})):
        asked = samples.question(where=base, gpus=8, implementation=calibrated.OURS)
        lines = calibrated.run_lines(true, base, samples.layout(asked, **fields))
        calibrated.write_lines(tmp_path / f"{name}.jsonl", lines)
    (tmp_path / "lab.yaml").write_text(yaml.safe_dump({"base": "dgx-a100", "name": "lab"}))
    return tmp_path


def test_fit_writes_a_profile_that_predicts_the_runs(folder: Path, seqplan: Seqplan) -> None:
    done = seqplan("fit", "lab.yaml", "--from", "a.jsonl", "b.jsonl")
    assert done.status == 0, done.err
    assert done.err == "written: lab-fitted.yaml\n"
    assert "device.attention_efficiency " in done.out  # no name is cut off in 80 columns
    refined, before = profiles.load_cluster("lab-fitted.yaml"), profiles.load_cluster("lab.yaml")
    share = refined.device.matmul_efficiency
    assert share == pytest.approx(0.8 * before.device.matmul_efficiency, rel=0.05)
    assert share.source.startswith("fitted by seqplan fit on 20")
    assert before.device.matmul_efficiency.source in share.source
    assert refined.inter_node == before.inter_node
    again = json.loads(seqplan("fit", "lab-fitted.yaml", "--from", "a.jsonl", "b.jsonl", "--json").out)
    assert again["error_before"] < 0.01


def test_fit_is_read_in_80_columns(folder: Path, seqplan: Seqplan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = seqplan("fit", "dgx-a100", "--from", "a.jsonl", "-o", "new.yaml").out.splitlines()
    assert max(map(len, lines)) <= 80
    (row,) = [line.split() for line in lines if line.startswith("device.matmul_efficiency")]
    assert len(row) == 5  # name, before, after, share and its sign: no cell is continued below
    (run,) = [line.split() for line in lines if line.startswith("a.jsonl")]
    assert run[1:3] == ["dp8,pp1,tp1,sp1", "5"]
    whys = [line for line in lines if line.startswith(" - ")]
    assert len(whys) >= 4, "why each other number is as it was"
    assert any(line.startswith(" - inter_node.efficiency: decides 0.0 % of the runs' time") for line in whys)


def test_fit_to_a_built_in_profile(folder: Path, seqplan: Seqplan) -> None:
    found = json.loads(seqplan("fit", "dgx-a100", "--from", "a.jsonl", "-o", "new.yaml", "--json").out)
    assert found["error_after"] < 0.01 < found["error_before"]
    assert [each["name"] for each in found["factors"] if not each["why_not"]] == ["device.matmul_efficiency"]
    assert profiles.load_cluster("new.yaml").name == "new"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lab.yaml"], "Missing option '--from'"),
        (["lab.yaml", "--from", "none.jsonl"], "none.jsonl: no such file."),
        (["lab.yaml", "--from", "empty.jsonl"], "empty.jsonl: the file is empty."),
        (
            ["lab.yaml", "--from", "lab.yaml"],
            "lab.yaml, line 1: is not JSON; a metrics file has one object a",
        ),
        (
            ["lab.yaml", "--from", "a.jsonl", "a.jsonl"],
            "--from names a.jsonl more than once. Give each run once.",
        ),
        (["dgx-h100", "--from", "a.jsonl"], "a.jsonl: ran on a100-80, and dgx-h100 describes h100-sxm."),
        (["local", "--from", "a.jsonl"], "a.jsonl: ran on a100-80, and local describes cpu."),
        (["dgx-h1000", "--from", "a.jsonl"], "did you mean dgx-h100"),
        (["lab.yaml", "--from", "a.jsonl", "-o", "x.json"], "-o x.json is not a YAML file."),
    ],
)
def test_fit_refuses_in_one_line(folder: Path, seqplan: Seqplan, arguments: list[str], says: str) -> None:
    (folder / "empty.jsonl").touch()
    assert says in refusal(seqplan("fit", *arguments))
    assert not (folder / "lab-fitted.yaml").exists()
