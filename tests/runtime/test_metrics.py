"""What a run measures and shows: metrics.jsonl, peak memory, progress and the final table."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from seqplan.runtime.metrics import (
    MetricsFile,
    RankReport,
    StepMetrics,
    live_tensor_bytes,
    measure_peak_bytes,
)
from seqplan.runtime.options import RunOptions
from seqplan.runtime.progress import ProgressLine, summary_table
from seqplan.runtime.report import Reporter, device_matches, stage_summaries
from seqplan.runtime.trainer import StepResult
from tests.runtime.fake_run import SEQ_LEN, fake_plan

MIB = 1 << 20


def step_metrics(step: int, loss: float = 2.5, mfu: float | None = None) -> StepMetrics:
    return StepMetrics(
        step=step,
        loss=loss,
        grad_norm=1.0,
        lr=1e-3,
        tokens=1000,
        loss_tokens=150,
        step_time_s=0.5,
        tokens_per_s=2000.0,
        mfu=mfu,
        peak_memory_bytes=None,
    )


def test_metrics_are_flushed_lines_and_no_run_overwrites_another(tmp_path: Path) -> None:
    path = tmp_path / "new" / "metrics.jsonl"
    MetricsFile(path).write(step_metrics(1))  # not closed: a rank that is killed has no chance to
    assert json.loads(path.read_text())["loss"] == 2.5
    for _ in range(2):
        again = MetricsFile(path)
        again.write(step_metrics(1, loss=float("nan")))
        again.close()
    (line,) = path.read_text().splitlines()
    assert json.loads(line)["loss"] is None  # NaN is not JSON
    assert json.loads((tmp_path / "new" / "metrics.1.jsonl").read_text())["loss"] == 2.5
    assert json.loads((tmp_path / "new" / "metrics.2.jsonl").read_text())["loss"] is None


def test_peak_memory_is_that_of_tensors() -> None:
    """8 MiB alive throughout, 4 + 2 MiB at the worst moment, 16 MiB of views that take nothing."""
    kept = torch.zeros(2 * MIB)

    def step() -> str:
        a = torch.ones(MIB)
        b = torch.ones(MIB // 2)
        del a
        c = torch.ones(MIB // 4)
        assert kept.expand(2, -1).numel() + b.numel() + c.numel() > 0
        return "result"

    before = live_tensor_bytes()
    assert before >= 8 * MIB
    result, peak = measure_peak_bytes(step)
    assert result == "result"
    assert peak - before == 6 * MIB


def test_peak_memory_counts_what_backward_keeps() -> None:
    """Three products of 1 MiB, all kept for backward together with the 1 MiB sum's gradient coming back."""
    x = torch.ones(MIB // 4, requires_grad=True)
    x.grad = None
    before = live_tensor_bytes()

    def step() -> None:
        (x.exp().exp().exp()).backward(torch.ones(MIB // 4))
        x.grad = None

    _, peak = measure_peak_bytes(step)
    assert peak - before >= 4 * MIB
    assert peak - before <= 6 * MIB
    assert live_tensor_bytes() == before


def test_gradients_are_seen() -> None:
    x = torch.ones(1000, requires_grad=True)
    before = live_tensor_bytes()
    (2 * x).sum().backward()
    assert live_tensor_bytes() - before == 4000


def report(rank: int, stage: int, peak_memory_bytes: int | None, step_time_s: float | None) -> RankReport:
    return RankReport(rank=rank, stage=stage, peak_memory_bytes=peak_memory_bytes, step_time_s=step_time_s)


def test_a_stage_is_its_fullest_and_its_slowest_rank() -> None:
    reports = [
        report(0, 0, 900, 0.4),
        report(1, 0, 1100, 0.3),
        report(2, 1, 500, None),
        report(3, 1, None, None),
    ]
    first, last = stage_summaries(fake_plan(4), reports, on_its_device=True)
    assert (first.planned_memory_bytes, first.measured_memory_bytes) == (1000.0, 1100)
    assert (first.planned_step_time_s, first.measured_step_time_s) == (0.5, 0.4)
    assert (last.planned_memory_bytes, last.measured_memory_bytes) == (2000.0, 500)
    assert last.measured_step_time_s is None
    # A step on another device is no measure of the plan's time, but its tensors are the same.
    elsewhere = stage_summaries(fake_plan(4), reports, on_its_device=False)[0]
    assert elsewhere == first.model_copy(update={"planned_step_time_s": None})


@pytest.mark.parametrize(
    ("planned", "kind", "actual", "expected"),
    [  # names as torch.cuda.get_device_name gives them
        ("H100-SXM", "cuda", "NVIDIA H100 80GB HBM3", True),
        ("H200", "cuda", "NVIDIA H200", True),
        ("H100-SXM", "cuda", "NVIDIA H200", False),
        ("A100-80", "cuda", "NVIDIA A100-SXM4-80GB", True),
        ("V100-32", "cuda", "Tesla V100-SXM2-32GB", True),
        ("MI300X", "rocm", "AMD Instinct MI300X", True),
        ("H100-PCIe", "cuda", "NVIDIA H100 PCIe", True),
        ("H100-PCIe", "cuda", "NVIDIA H100 80GB HBM3", False),
        ("H100-SXM", "cuda", "NVIDIA H100 PCIe", False),
        ("RTX-4090", "cuda", "NVIDIA GeForce RTX 4090", True),
        ("L4", "cuda", "NVIDIA L40S", False),
        ("RTX-4090", "cuda", "NVIDIA GeForce RTX 3090", False),
        ("cpu-core", "cpu", None, True),
        ("H100-SXM", "cuda", None, False),
        ("cpu-core", "cpu", "NVIDIA H200", False),
    ],
)
def test_mfu_only_on_the_device_of_the_plan(
    planned: str, kind: str, actual: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: actual)
    device = torch.device("cpu" if actual is None else "cuda")
    assert device_matches(fake_plan(2, device=planned, kind=kind), device) is expected


def test_the_report_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan says MFU 0.4 at 0.5 s a step; 0.25 s is twice that."""
    options = RunOptions(steps=2, output_dir=tmp_path)
    with Reporter(fake_plan(2), options, torch.device("cpu")) as reporter:
        for step in (1, 2):
            reporter.step(step, StepResult(4.0 / step, 1.0, 0.1, 5), 0.25, 123)
        summary = reporter.finish([report(0, 0, 123, 0.25), report(1, 1, 99, 0.2)])
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[0].pop("run")["layout"]["dp"] == 2  # what the steps are steps of, in the first line only
    assert (
        set(lines[0])
        == set(lines[1])
        == {
            *("step", "loss", "grad_norm", "lr", "tokens", "loss_tokens", "step_time_s", "tokens_per_s"),
            *("mfu", "peak_memory_bytes"),
        }
    )
    assert lines[1]["loss"] == 2.0
    assert lines[1]["tokens"] == 2 * SEQ_LEN
    assert lines[1]["tokens_per_s"] == 2 * SEQ_LEN / 0.25
    assert lines[1]["mfu"] == pytest.approx(0.8)
    assert lines[1]["peak_memory_bytes"] == 123
    assert (summary.first_loss, summary.last_loss) == (4.0, 2.0)
    assert summary.mfu == pytest.approx(0.8)
    assert json.loads((tmp_path / "summary.json").read_text())["stages"][0]["measured_memory_bytes"] == 123
    said = capsys.readouterr().err
    assert "step 1/2 | loss 4.0000 | 128 tokens/s | MFU 80.0 % | 0 s left" in said


def test_plain_lines_where_there_is_no_terminal() -> None:
    text = io.StringIO()
    with ProgressLine(10, log_every=4, console=Console(file=text, width=40)) as line:
        for step in range(1, 11):
            line.show(step_metrics(step))
    assert text.getvalue().splitlines() == [
        "step 1/10 | loss 2.5000 | 2,000 tokens/s | 4 s left",
        "step 4/10 | loss 2.5000 | 2,000 tokens/s | 3 s left",
        "step 8/10 | loss 2.5000 | 2,000 tokens/s | 1 s left",
        "step 10/10 | loss 2.5000 | 2,000 tokens/s | 0 s left",
    ]


def test_one_line_that_is_redrawn_on_a_terminal() -> None:
    text = io.StringIO()
    console = Console(file=text, width=120, force_terminal=True, highlight=False)
    with ProgressLine(10, log_every=1, console=console) as line:
        line.show(step_metrics(3, mfu=0.412))
    shown = text.getvalue()
    assert "3/10" in shown
    assert "loss 2.5000 | 2,000 tokens/s | MFU 41.2 %" in shown
    assert "left" in shown


def test_the_table_shows_planned_beside_measured(tmp_path: Path) -> None:
    with Reporter(fake_plan(2), RunOptions(steps=1, output_dir=tmp_path), torch.device("cpu")) as reporter:
        reporter.step(1, StepResult(4.0, 1.0, 0.1, 5), 0.25, None)
        summary = reporter.finish([report(0, 0, 1500, 1.25), report(1, 1, None, None)])
    console = Console(record=True, width=140, file=io.StringIO())
    console.print(summary_table(summary))
    rows = [line for line in console.export_text().splitlines() if "\u2502" in line]
    assert [cell.strip() for cell in rows[0].split("\u2502")[1:-1]] == [
        *("0", "0.0 MiB", "0.0 MiB", "1.50"),
        *("500.0 ms", "1.250 s", "2.50"),
    ]
    assert [cell.strip() for cell in rows[1].split("\u2502")[1:-1]][3:] == ["-", "500.0 ms", "-", "-"]
