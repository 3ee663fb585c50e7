"""The training loop that every rank runs: read, step, measure.

Steps count from 1 where a person reads them and from 0 where they index data and randomness.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from seqplan.planner.errors import FailedError, SeqplanError
from seqplan.runtime.data import BatchPart, Data, TextData
from seqplan.runtime.launching.meeting import ranks_meet
from seqplan.runtime.metrics import UNTIMED_STEPS, RankReport, RunSummary, measure_peak_bytes
from seqplan.runtime.options import MakeTrainer, RunOptions
from seqplan.runtime.report import Reporter
from seqplan.runtime.text_files import TextFiles

if TYPE_CHECKING:
    from seqplan.planner.plan import Plan
    from seqplan.runtime.trainer import StepResult


def train(
    plan: Plan,
    files: TextFiles,
    options: RunOptions,
    device_type: str,
    make_trainer: MakeTrainer | None = None,
) -> RunSummary | None:
    """Train a plan on this rank; the summary on rank 0. RANK, WORLD_SIZE and so on are in the environment."""
    device = _device(device_type)
    timeout = timedelta(seconds=options.timeout_s)
    with ranks_meet(options.timeout_s):
        if device_type == "cuda":
            dist.init_process_group("nccl", timeout=timeout, device_id=device)
        else:
            dist.init_process_group("gloo", timeout=timeout)
    _check_same_data(files)
    trainer = (make_trainer or build_trainer)(plan, device, options)
    limit_all_groups(timeout)
    data = text_data(plan, files, options, trainer.mesh)
    loop = _Loop(trainer, data, options, device)
    summary = None
    if dist.get_rank() == 0:
        if shortage := data.shortage():
            print(f"warning: {shortage}", file=sys.stderr, flush=True)
        with Reporter(plan, options, device) as reporter:
            loop.run(reporter)
            summary = reporter.finish(loop.gather())
    else:
        loop.run(None)
        loop.gather()
    dist.destroy_process_group()
    return summary


def build_trainer(plan: Plan, device: torch.device, options: RunOptions) -> Any:
    """The runtime's own trainer."""
    from seqplan.runtime.trainer import Trainer

    return Trainer(plan.model, plan.train, plan.layout, options, device)


def text_data(plan: Plan, files: TextFiles, options: RunOptions, mesh: Any) -> TextData:
    """This rank's part of the text: an encoder guesses masked tokens, a decoder the next one."""
    causal = plan.model.architecture == "decoder"
    part = BatchPart.of(plan.train, plan.layout, causal, mesh.dp_rank, mesh.sp_rank)
    return TextData(files, part, vocab_size=plan.model.vocab_size, masked=not causal, seed=options.seed)


class _Loop:
    """All steps of one rank, with what was measured on the way."""

    def __init__(self, trainer: Any, data: Data, options: RunOptions, device: torch.device) -> None:
        self.trainer = trainer
        self.data = data
        self.options = options
        self.device = device
        self.times_s: list[float] = []
        self.peak_bytes: int | None = None

    def run(self, reporter: Reporter | None) -> None:
        for step in range(1, self.options.steps + 1):
            started = time.perf_counter()
            result = self._step(step)
            seconds = time.perf_counter() - started
            if step > UNTIMED_STEPS:
                self.times_s.append(seconds)
            if reporter is not None:
                reporter.step(step, result, seconds, self.peak_bytes)
            _check_finite(step, result)

    def _step(self, step: int) -> StepResult:
        """One step; its time ends when the loss is known, which waits for the device."""
        micro_batches = [micro_batch.to(self.device) for micro_batch in self.data.micro_batches(step - 1)]
        run = partial(self.trainer.train_step, micro_batches, step - 1)
        result: StepResult
        if self.device.type == "cuda":
            if step == 1:
                torch.cuda.reset_peak_memory_stats(self.device)
            result = run()
            self.peak_bytes = int(torch.cuda.max_memory_allocated(self.device))
        elif step == min(UNTIMED_STEPS, self.options.steps):
            result, self.peak_bytes = measure_peak_bytes(run)
        else:
            result = run()
        return result

    def gather(self) -> list[RankReport]:
        """What every rank measured; all ranks call it."""
        mine = RankReport(
            rank=dist.get_rank(),
            stage=self.trainer.mesh.pp_stage,
            peak_memory_bytes=self.peak_bytes,
            step_time_s=statistics.median(self.times_s) if self.times_s else None,
        )
        reports: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(reports, mine)
        return reports


def _device(device_type: str) -> torch.device:
    if device_type == "cpu":
        return torch.device("cpu")
    local_rank, found = os.environ.get("LOCAL_RANK", ""), torch.cuda.device_count()
    if not (local_rank.isdigit() and int(local_rank) < found):
        raise SeqplanError(
            f"LOCAL_RANK={local_rank!r} names none of the {found} GPUs that torch sees.",
            "Set it for every rank of a node, from 0 up.",
        )
    device = torch.device("cuda", int(local_rank))
    torch.cuda.set_device(device)
    return device


def _check_same_data(files: TextFiles) -> None:
    """Every node lists its own copy of the data: names, order and sizes must be the same."""
    digests: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(digests, (files.digest, len(files.paths), files.total_bytes))
    others = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        (_, count, size), (_, other_count, other_size) = digests[0], digests[others[0]]
        raise SeqplanError(
            f"The data differs between nodes: rank 0 sees {count} files with {size} bytes, rank {others[0]}"
            f" {other_count} files with {other_size} bytes.",
            "Give every node the same files in the same order.",
        )


def limit_all_groups(timeout: timedelta) -> None:
    """Apply the timeout to every process group: those of a mesh get torch's default of 10 to 30 minutes."""
    for group in list(distributed_c10d._world.pg_map):
        distributed_c10d._set_pg_timeout(timeout, group)


def _check_finite(step: int, result: StepResult) -> None:
    if not (math.isfinite(result.loss) and math.isfinite(result.grad_norm)):
        raise FailedError(
            f"The loss is {result.loss:g} and the gradient norm {result.grad_norm:g} at step {step}"
            f" (learning rate {result.learning_rate:g}).",
            "Lower learning_rate, lengthen warmup_steps, or set clip_norm.",
        )
