"""A run whose trainer does nothing but one collective a step, and misbehaves on demand.

Faults belong to the launcher and the loop, not to the model: so they are tried where a step costs nothing.
`python -m tests.runtime.fake_run MODE RANKS FOLDER [NODE_RANK ENDPOINT]` is such a run as a process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import Layout
from seqplan.planner.plan import Estimate, Plan, Provenance
from seqplan.planner.results import MemoryEstimate, StageMemory, TimeEstimate
from seqplan.planner.train_spec import TrainSpec
from seqplan.runtime.launch import RunResult, launch
from seqplan.runtime.options import RunOptions
from tests.planner import samples

if TYPE_CHECKING:
    from seqplan.runtime.trainer import StepResult

SEQ_LEN = 16
FAULTY_RANK = 1
FAULTY_STEP = 3


def fake_plan(world_size: int, device: str = "one core", kind: str = "cpu") -> Plan:
    """dp only, with an estimate of two stages: what the loop reads, not what a planner would say."""
    stages = tuple(
        StageMemory(
            stage=stage,
            allocated_bytes=1000.0 * (stage + 1),
            overhead_bytes=7.0,
            peak_bytes=1000.0 * (stage + 1) + 7.0,
            by_kind={},
            overhead_by_kind={},
        )
        for stage in range(2)
    )
    memory = MemoryEstimate(
        allocated_bytes=2000.0,
        overhead_bytes=7.0,
        peak_bytes=2007.0,
        limit_bytes=1e9,
        worst_stage=1,
        stages=stages,
    )
    time_s = TimeEstimate(step_time_s=0.5, tokens_per_s_per_gpu=1.0, mfu=0.4, by_kind={}, bubble_fraction=0.0)
    cluster = samples.cluster()
    return Plan(
        schema="seqplan/1",
        model=samples.decoder(vocab_size=257),
        cluster=cluster.model_copy(
            update={"device": cluster.device.model_copy(update={"name": device, "kind": kind})}
        ),
        gpus=world_size,
        train=TrainSpec(seq_len=SEQ_LEN, global_batch_size=world_size, precision="fp32"),
        layout=Layout(
            dp=world_size, pp=1, tp=1, sp=1, micro_batch_size=1, precision="fp32", stage_layers=(32,)
        ),
        implementation="seqplan",
        estimate=Estimate(memory=memory, time=time_s),
        provenance=Provenance(seqplan_version="0", inputs={}),
    )


@dataclass
class FakeMesh:
    dp_rank: int
    pp_stage: int
    sp_rank: int = 0
    tp_rank: int = 0


class FakeTrainer:
    """Sums a vector over a group of its own, after `fault()` on the faulty rank."""

    def __init__(self, fault: Callable[[], None] | None, options: RunOptions) -> None:
        import torch.distributed as dist

        self.rank = dist.get_rank()
        self.fault = fault
        self.group = dist.new_group()  # with torch's own timeout of 30 minutes, as the groups of a mesh
        self.mesh = FakeMesh(dp_rank=self.rank, pp_stage=self.rank % 2)
        pid_file(options.output_dir, self.rank).write_text(str(os.getpid()))

    def train_step(self, micro_batches: list[Any], step: int) -> StepResult:
        import torch
        import torch.distributed as dist

        from seqplan.runtime.trainer import StepResult

        if step == FAULTY_STEP and self.rank == FAULTY_RANK and self.fault is not None:
            self.fault()
        total = torch.ones(1000, dtype=torch.float64)
        dist.all_reduce(total, group=self.group)
        return StepResult(float(total[0]) / (step + 1), 1.0, 0.1, micro_batches[0].labels.numel())


def pid_file(folder: Path, rank: int) -> Path:
    return folder / f"pid-{rank}"


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise() -> None:
    raise ValueError("no such thing at all")


def _hang() -> None:
    time.sleep(1000)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _hang_up() -> None:
    """What a terminal that closes, and Ctrl-C, do to every process of a run."""
    os.killpg(os.getpgrp(), signal.SIGHUP)
    os.killpg(os.getpgrp(), signal.SIGINT)


def _wrong_input() -> None:
    raise SeqplanError("this input is wrong.", "Give another.")


def make_well(plan: Plan, device: Any, options: RunOptions) -> FakeTrainer:
    return FakeTrainer(None, options)


def make_killed(plan: Plan, device: Any, options: RunOptions) -> FakeTrainer:
    return FakeTrainer(_kill, options)


def make_raising(plan: Plan, device: Any, options: RunOptions) -> FakeTrainer:
    return FakeTrainer(_raise, options)


def make_hanging(plan: Plan, device: Any, options: RunOptions) -> FakeTrainer:
    return FakeTrainer(_hang, options)


def make_stopped(plan: Plan, device: Any, options: RunOptions) -> FakeTrainer:
    return FakeTrainer(_stop, options)


def make_misused(plan: Plan, device: Any, options: RunOptions) -> FakeTrainer:
    return FakeTrainer(_wrong_input, options)


def make_unlisted(plan: Plan, device: Any, options: RunOptions) -> FakeTrainer:
    return FakeTrainer((options.output_dir / "metrics.jsonl").unlink, options)


def make_hung_up(plan: Plan, device: Any, options: RunOptions) -> FakeTrainer:
    return FakeTrainer(_hang_up, options)


TRAINERS = {
    "well": make_well,
    "killed": make_killed,
    "raising": make_raising,
    "hanging": make_hanging,
    "stopped": make_stopped,
    "misused": make_misused,
    "hung up": make_hung_up,
    "unlisted": make_unlisted,
}


def fake_run(mode: str, world_size: int, folder: Path, **changes: Any) -> RunResult:
    """Launch a fake run on text that it writes to `folder`."""
    folder.mkdir(exist_ok=True)
    text = folder / "text.txt"
    if not text.exists():
        text.write_text("some text to read, again and again. " * 20)
    options = RunOptions(**{"steps": 6, "output_dir": folder, "timeout_s": 60.0, **changes})
    return launch(fake_plan(world_size), [text], options, TRAINERS[mode])


def start(*arguments: str, **how: Any) -> subprocess.Popen[str]:
    """A launcher in a session of its own, as a shell would start it."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.runtime.fake_run", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        **how,
    )


def main(mode: str, ranks: str, folder: str, *node: str) -> int:
    changes: dict[str, Any] = {}
    if node:
        changes = {"nnodes": 2, "node_rank": int(node[0]), "rdzv_endpoint": node[1]}
    try:
        return fake_run(mode, int(ranks), Path(folder), **changes).exit_code
    except SeqplanError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
