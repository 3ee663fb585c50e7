"""What the command line lets one say about time: float8, and which overlaps not to count on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_line import Seqplan, refusal, runner

LLAMA = ["llama2-7b", "--cluster", "dgx-h100", "--gpus", "16", "--seq-len", "4k", "--global-batch-size", "64"]
LAYOUT = ["--layout", "dp2,tp4,sp2,zero_stage=1,tp_sequence_parallel=true"]


@pytest.fixture
def seqplan(capsys: pytest.CaptureFixture[str]) -> Seqplan:
    return runner(capsys)


def explained(seqplan: Seqplan, *more: str) -> dict[str, object]:
    typed = ["explain", *LLAMA, *LAYOUT, "--implementation", "nemo", *more, "--json"]
    found: dict[str, object] = json.loads(seqplan(*typed).out)
    return found


def step_s(found: dict[str, object]) -> float:
    time = found["time"]
    assert isinstance(time, dict)
    return float(time["step_time_s"])


def test_float8_shortens_the_matmuls(seqplan: Seqplan) -> None:
    bf16, fp8 = explained(seqplan, "--precision", "bf16"), explained(seqplan, "--precision", "fp8")
    assert 0.5 < step_s(fp8) / step_s(bf16) < 0.9
    assert fp8["memory"] == bf16["memory"]


def test_float8_is_refused_where_it_cannot_be(seqplan: Seqplan, tmp_path: Path) -> None:
    ours = " ".join(seqplan("explain", *LLAMA, "--layout", "dp16", "--precision", "fp8").out.split())
    assert "trainer_precision: seqplan has no precision=fp8; use fp32 or bf16." in ours
    older = [*LLAMA[:2], "dgx-a100", *LLAMA[3:], "--layout", "dp16", "--precision", "fp8"]
    text = " ".join(seqplan("explain", *older, "--implementation", "nemo").out.split())
    assert "a100-80 has no precision=fp8 for training" in text
    narrow = ["explain", *LLAMA[:3], "--gpus", "32", *LLAMA[5:], "--layout", "tp32", "--precision", "fp8"]
    text = " ".join(seqplan(*narrow, "--implementation", "nemo").out.split())
    assert "tp=32 cuts a weight's 11008 into 344; use tp 1, 2, 4, 8 or 16 or precision=bf16." in text
    plan = tmp_path / "plan.yaml"
    made = seqplan("suggest", *LLAMA, "--implementation", "nemo", "--precision", "fp8", "-o", str(plan))
    assert made.status == 0
    said = refusal(seqplan("run", str(plan), "--data", str(tmp_path), "--steps", "1"))
    assert "seqplan has no precision=fp8; use fp32 or bf16." in said


def test_interleaving_needs_whole_groups_of_micro_batches(seqplan: Seqplan) -> None:
    typed = "dp4,pp2,tp2,schedule=interleaved,num_virtual_stages=2,micro_batch_size=16"
    text = " ".join(seqplan("explain", *LLAMA, "--layout", typed, "--implementation", "nemo").out.split())
    assert "num_microbatches=1 (global_batch_size=64 / (dp=4 x micro_batch_size=16)) is no multiple" in text
    assert "set schedule=1f1b or global_batch_size=128." in text


def test_overlaps_are_not_counted_on_when_told_so(seqplan: Seqplan) -> None:
    usual, none = explained(seqplan), explained(seqplan, "--no-overlap", "all")
    assert step_s(none) > step_s(usual) * 1.01
    text = seqplan("explain", *LLAMA, *LAYOUT, "--implementation", "nemo", "--no-overlap", "ring,tp").out
    said = " ".join(text.split())
    assert "nothing hides the ring's hops" in said
    assert "nothing hides the tensor-parallel collectives" in said
    assert "the gather behind the first forward" in said
    assert "Not counted on (--no-overlap): ring, tp" in said
    assert "no overlap is called rings; use ring, reduction" in refusal(
        seqplan("suggest", *LLAMA, "--no-overlap", "rings")
    )
