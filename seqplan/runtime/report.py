"""Rank 0's report of a run: a line a step, and planned beside measured at the end.

MFU needs no FLOP count of its own: the plan's MFU at the plan's step time fixes the FLOPs of a step over
the peak, and a measured step time gives the measured one. It is shown only on the device that the plan
names; for another, no MFU is better than a wrong one.
"""

from __future__ import annotations

import re
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from seqplan.planner.calibration.run_records import RunHeader
from seqplan.runtime.metrics import (
    UNTIMED_STEPS,
    MetricsFile,
    RankReport,
    RunSummary,
    StageSummary,
    StepMetrics,
    write_summary,
)
from seqplan.runtime.options import RunOptions
from seqplan.runtime.progress import ProgressLine

if TYPE_CHECKING:
    from seqplan.planner.plan import Plan
    from seqplan.runtime.trainer import StepResult


class Reporter:
    """Writes metrics.jsonl and summary.json and shows progress; lives on rank 0 alone."""

    def __init__(self, plan: Plan, options: RunOptions, device: torch.device) -> None:
        self.plan = plan
        self.options = options
        self.on_gpu = device.type == "cuda"
        self.knows_peak = device_matches(plan, device)
        self.tokens = plan.train.global_batch_size * plan.train.seq_len
        self.losses: list[float] = []
        self._file = MetricsFile(options.output_dir / "metrics.jsonl")
        self._line = ProgressLine(options.steps, options.log_every)

    def __enter__(self) -> Reporter:
        self._line.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.__exit__(kind, error, trace)
        self._file.close()

    def step(self, step: int, result: StepResult, seconds: float, peak_bytes: int | None) -> None:
        self.losses.append(result.loss)
        metrics = StepMetrics(
            step=step,
            loss=result.loss,
            grad_norm=result.grad_norm,
            lr=result.learning_rate,
            tokens=self.tokens,
            loss_tokens=result.tokens,
            step_time_s=seconds,
            tokens_per_s=self.tokens / seconds,
            mfu=self.mfu(seconds),
            peak_memory_bytes=peak_bytes,
            run=self.header() if len(self.losses) == 1 else None,
        )
        self._file.write(metrics)
        self._line.show(metrics)

    def header(self) -> RunHeader:
        """What the first line says of the run."""
        plan = self.plan
        return RunHeader(
            schema="seqplan-run/1",
            model=plan.model,
            cluster=plan.cluster,
            gpus=plan.gpus,
            train=plan.train,
            layout=plan.layout,
            implementation=plan.implementation,
            device="cuda" if self.on_gpu else "cpu",
            planned_step_time_s=plan.estimate.time.step_time_s,
            untimed_steps=UNTIMED_STEPS,
        )

    def mfu(self, step_time_s: float) -> float | None:
        if not self.knows_peak:
            return None
        time = self.plan.estimate.time
        return time.mfu * time.step_time_s / step_time_s

    def finish(self, reports: list[RankReport]) -> RunSummary:
        stages = stage_summaries(self.plan, reports, self.knows_peak)
        slowest_s = max((stage.measured_step_time_s or 0.0 for stage in stages), default=0.0)
        summary = RunSummary(
            steps=self.options.steps,
            first_loss=self.losses[0],
            last_loss=self.losses[-1],
            tokens_per_s=self.tokens / slowest_s if slowest_s else None,
            mfu=self.mfu(slowest_s) if slowest_s else None,
            memory_kind="allocated" if self.on_gpu else "tensors",
            stages=stages,
            output_dir=str(self.options.output_dir),
            planned_for=None if self.knows_peak else self.plan.cluster.device.name,
        )
        write_summary(summary, self.options.output_dir / "summary.json")
        return summary


def stage_summaries(plan: Plan, reports: list[RankReport], on_its_device: bool) -> tuple[StageSummary, ...]:
    """The fullest and the slowest rank of each stage beside what the plan says of it."""
    summaries = []
    for planned in plan.estimate.memory.stages:
        ranks = [report for report in reports if report.stage == planned.stage]
        memory = [r.peak_memory_bytes for r in ranks if r.peak_memory_bytes is not None]
        times = [r.step_time_s for r in ranks if r.step_time_s is not None]
        summaries.append(
            StageSummary(
                stage=planned.stage,
                # What the measurement sees are tensors: context, communicators and fragmentation are not.
                planned_memory_bytes=planned.allocated_bytes,
                measured_memory_bytes=max(memory, default=None),
                planned_step_time_s=plan.estimate.time.step_time_s if on_its_device else None,
                measured_step_time_s=max(times, default=None),
            )
        )
    return tuple(summaries)


def device_matches(plan: Plan, device: torch.device) -> bool:
    """Whether the plan's peak rate is that of the device in use: "H100-SXM" and "NVIDIA H100 80GB HBM3"."""
    planned = plan.cluster.device
    if device.type == "cpu":
        return planned.kind == "cpu"
    words = re.split(r"[^a-z0-9]+", planned.name.lower())
    actual = re.split(r"[^a-z0-9]+", torch.cuda.get_device_name(device).lower())
    model = next((word for word in words if re.search(r"\d", word)), None)
    # The PCIe card of a generation can be slower than the SXM module; torch names the former only.
    other_form = ("pcie" in words and "pcie" not in actual) or ("sxm" in words and "pcie" in actual)
    return planned.kind != "cpu" and model in actual and not other_form
