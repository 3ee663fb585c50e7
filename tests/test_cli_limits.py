"""`limits` as a user types it: tables, JSON, a chart, and what it refuses in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.command_line import Seqplan, refusal, runner

LENGTHS = ["limits", "bert-base", "--cluster", "piz-daint", "--gpus", "16", "--global-batch-size", "64"]
FAST = ["--family", "tp,sp", "--devices", "4,16", "--recompute", "none"]


@pytest.fixture
def seqplan(capsys: pytest.CaptureFixture[str]) -> Seqplan:
    return runner(capsys)


def test_a_table_of_lengths(seqplan: Seqplan) -> None:
    done = seqplan(*LENGTHS, *FAST)
    assert done.status == 0
    lines = done.out.splitlines()
    assert lines[0] == "bert-base on up to 16 x p100-16 of piz-daint"
    assert lines[1] == "the longest sequence for 64 sequences in one pass, fp32, trainer seqplan"
    (header,) = [line for line in lines if line.startswith("devices")]
    assert header.split() == ["devices", "tp", "sp"]
    (row,) = [line for line in lines if line.split()[:1] == ["16"]]
    assert row.split()[1] == "-"
    assert int(row.split()[2].replace(",", "")) % 16 == 0
    assert "tp=16 does not divide num_attention_heads=12" in done.out
    assert "x tp; dp1 pp1 tp1 sp16" in done.out
    assert "without gradient accumulation" in done.out


def test_json_has_the_same_values(seqplan: Seqplan) -> None:
    answer = json.loads(seqplan(*LENGTHS, *FAST, "--json").out)
    assert answer["schema"] == "seqplan-json/1"
    assert (answer["searched"], answer["given"]) == ("seq_len", 64)
    found = {(limit["family"], limit["gpus"]): limit for limit in answer["limits"]}
    assert set(found) == {("tp", 4), ("tp", 16), ("sp", 4), ("sp", 16)}
    assert found["tp", 16]["value"] is None
    longest = found["sp", 16]
    assert longest["layout"]["sp"] == 16
    assert longest["peak_bytes"] <= longest["limit_bytes"]
    assert f"{longest['value']:,}" in seqplan(*LENGTHS, *FAST).out


def test_the_largest_batch(seqplan: Seqplan) -> None:
    done = seqplan(*LENGTHS[:6], "--seq-len", "512", "--devices", "16", "--family", "sp", "--json")
    (limit,) = json.loads(done.out)["limits"]
    assert limit["value"] == limit["layout"]["micro_batch_size"]


def test_a_batch_in_tokens_is_warned_of_here_too(seqplan: Seqplan) -> None:
    asked = ["limits", "tiny", "--cluster", "local", "--gpus", "2", "--seq-len", "4096", "--family", "tp"]
    meant = [*asked, "--global-batch-size", "4M"]
    # 4 Mi sequences of 4,096 tokens are 17.2e9; Llama 3 405B took 16 Mi tokens a step (arXiv 2407.21783).
    says = "4,194,304 of 4,096 tokens are 17.2 G tokens a step; if 4,194,304 are tokens, set"
    assert says in " ".join(seqplan(*meant).out.split())
    (warning,) = json.loads(seqplan(*meant, "--json").out)["warnings"]
    assert says in warning
    assert json.loads(seqplan(*asked, "--global-batch-size", "1024", "--json").out)["warnings"] == []


def test_the_smallest_cluster(seqplan: Seqplan) -> None:
    asked = [*LENGTHS, "--seq-len", "512", "--family", "sp,all"]
    done = seqplan(*asked)
    assert done.status == 0
    assert "The smallest cluster that fits, by family" in done.out
    assert "Tried were 1, 2, 4, 8, 16 devices" in done.out
    answer = json.loads(seqplan(*asked, "--json").out)
    assert answer["searched"] == "gpus"
    assert [each["family"] for each in answer["smallest"]] == ["sp", "all"]
    nothing = seqplan("limits", "llama3-405b", *LENGTHS[2:], "--seq-len", "4k")
    assert nothing.status == 1
    assert "none of the clusters tried" in nothing.out


def test_where_nothing_fits(seqplan: Seqplan) -> None:
    done = seqplan("limits", "llama3-70b", "--cluster", "dgx-h100", "--gpus", "2", "--seq-len", "4k")
    assert done.status == 1
    assert "GiB too much" in done.out


@pytest.mark.parametrize(("name", "starts"), [("limits.svg", b"<?xml"), ("limits.png", b"\x89PNG")])
def test_a_chart(seqplan: Seqplan, tmp_path: Path, name: str, starts: bytes) -> None:
    pytest.importorskip("matplotlib")
    done = seqplan(*LENGTHS, *FAST, "--plot", str(tmp_path / name))
    assert done.status == 0
    assert f"written: {tmp_path / name}" in done.err
    chart = (tmp_path / name).read_bytes()
    assert chart.startswith(starts)
    if name.endswith("svg"):
        assert b"tokens of a sequence" in chart


def test_without_matplotlib(seqplan: Seqplan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    line = refusal(seqplan(*LENGTHS, *FAST, "--plot", str(tmp_path / "limits.svg")))
    assert "matplotlib, which is not installed" in line
    assert "pip install 'seqplan[plot]'" in line


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--plot", "limits.pdf"], "--plot limits.pdf is neither .svg nor .png"),
        (["--plot", "no-such-folder/limits.svg"], "no folder no-such-folder"),
        (["--family", "tp,cp"], "unknown family cp. The families are tp, sp, sp+pp and all."),
        (["--devices", "x"], "--devices x is not a whole number"),
        (["--devices", "0"], "--devices 0 must be at least 1"),
        (["--seq-len", "512", "--plot", "limits.svg"], "the fewest devices have no chart"),
    ],
)
def test_refusals(seqplan: Seqplan, more: list[str], says: str) -> None:
    assert says in refusal(seqplan(*LENGTHS, *more))


def test_one_of_length_and_batch_is_needed(seqplan: Seqplan) -> None:
    line = refusal(seqplan(*LENGTHS[:6]))
    assert "limits needs --seq-len or --global-batch-size" in line
    pinned = refusal(seqplan(*LENGTHS[:6], "--seq-len", "512", "--micro-batch-size", "2"))
    assert "gradient accumulation makes any batch possible" in pinned
