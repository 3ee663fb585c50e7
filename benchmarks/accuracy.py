"""Planned beside measured step times of eight layouts on 4 local ranks: `make accuracy`.

Calibration and training steps are taken in turns, one window or two steps of each a round (the second step
counts), in the same processes: a machine that others use too is slow for seconds at a time, and so slows both
alike. The plan knows nothing of the measured steps: it is made from the calibration's cluster file alone.

Two tables. Step time is what counts: goals are 6 of 8 layouts within 15 %, and the order right (Spearman's
rank correlation at least 0.8). It means little while other work takes the cores, so the second table sets
the CPU seconds of a rank (calibrated in CPU seconds too, waiting left out on both sides) beside each other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from seqplan.planner.calibration.cluster_profile import profile_of
from seqplan.planner.calibration.samples import Measurements
from seqplan.planner.layout import Layout
from seqplan.planner.layout_defaults import parse_layout
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.question import Question
from seqplan.planner.results import TIME_KINDS
from seqplan.planner.time_model import time_estimate
from seqplan.planner.train_spec import TrainSpec
from seqplan.profiles import load_implementation, load_model
from seqplan.profiles.cluster_file import cluster_from
from seqplan.profiles.this_machine import core_count
from seqplan.runtime.calibration.calibrate_ranks import run_on_ranks

RANKS = 4
LAYOUTS = (
    "dp4,zero_stage=0,micro_batch_size=2",
    "dp4,zero_stage=3,micro_batch_size=1",
    "dp2,pp2,micro_batch_size=1,recompute=full",
    "pp4,micro_batch_size=2",
    "tp4,micro_batch_size=2",
    "dp2,tp2,micro_batch_size=2,tp_sequence_parallel=true",
    "sp4,micro_batch_size=2,attention=ring",
    "dp2,sp2,micro_batch_size=2,attention=rsa,zero_stage=2,recompute=full",
)
TRAIN = TrainSpec(seq_len=512, global_batch_size=8)
WITHIN = 0.15
LIMIT_S = 1500.0
"""After which ranks that have not finished are ended."""

LEAST_WITHIN, LEAST_SPEARMAN = 6, 0.8


def model() -> ModelSpec:
    """The built-in tiny model, wide enough that its matmuls matter beside Python."""
    tiny, _ = load_model("tiny")
    wider = {
        "hidden_size": 256,
        "embedding_size": 256,
        "ffn_hidden_size": 768,
        "head_dim": 32,
        "num_layers": 4,
    }
    return ModelSpec.model_validate({**tiny.model_dump(), "name": "tiny, wider", **wider})


def train_and_measure(
    device: Any, report: Any, train: TrainSpec, layouts: list[Layout], seconds: float, rounds: int
) -> list[tuple[Measurements, list[list[float]]]]:
    """On each rank: calibration and a step of every layout, in turns; by the clock, and in CPU seconds."""
    from seqplan.runtime.calibrate import Calibration
    from seqplan.runtime.calibration.calibrate_sizes import SIZES
    from seqplan.runtime.calibration.calibrate_timing import Task, time_all

    calibration = Calibration(device, RANKS, replace(SIZES["cpu"], rounds=rounds))
    steps = [Task(each.degrees_text, _training_step(train, each, device), together=True) for each in layouts]
    # A step follows another of its layout, as in a run: the first one after other work finds its memory cold.
    before = [Task(step.what, step.call, together=True) for step in steps]
    tasks = [*calibration.tasks, *(task for pair in zip(before, steps, strict=True) for task in pair)]
    time_all(tasks, device, calibration.window_s(seconds), rounds, report)
    found = [(calibration.measurements(), [step.means_s for step in steps])]
    for task in tasks:
        task.means_s = task.cpu_means_s
    # A rank has its CPU seconds for itself.
    alone = calibration.measurements().model_copy(update={"cores_per_node": RANKS})
    return [*found, (alone, [step.means_s for step in steps])]


def _training_step(train: TrainSpec, layout: Layout, device: Any) -> Any:
    """A step of our own trainer on made-up tokens."""
    import torch

    from seqplan.runtime.data import MicroBatch
    from seqplan.runtime.options import RunOptions
    from seqplan.runtime.sequence_split import local_positions
    from seqplan.runtime.trainer import Trainer

    spec = model()
    trainer = Trainer(spec, train, layout, RunOptions(steps=1000), device)
    positions = local_positions(train.seq_len, layout.sp, trainer.mesh.sp_rank, causal=True)
    batch = layout.micro_batch_size
    generator = torch.Generator().manual_seed(0)
    micro_batches = []
    for index in range(trainer.num_microbatches):
        whole = torch.randint(0, 256, (batch, train.seq_len + 1), generator=generator)
        rows = torch.arange(batch) + index * batch
        micro_batches.append(MicroBatch(whole[:, positions], whole[:, positions + 1], None, positions, rows))
    return partial(trainer.train_step, micro_batches, 0)


def spearman(planned: list[float], measured: list[float]) -> float:
    ranks = [np.argsort(np.argsort(each)).astype(float) for each in (planned, measured)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=50.0, help="of the calibration's windows")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--save", type=Path, help="keep the measurements as JSON")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    options = parser.parse_args()
    train = TRAIN.model_copy(update={"precision": options.precision})
    spec, trainer = model(), load_implementation("seqplan")
    local = cluster_from(_stand_in(), "stand-in")
    question = Question(model=spec, cluster=local, gpus=RANKS, train=train, implementation=trainer)
    layouts = [parse_layout(text, question) for text in LAYOUTS]
    progress = _terminal_progress()
    asked = (train, layouts, options.seconds, options.rounds)
    found = run_on_ranks(RANKS, "cpu", train_and_measure, asked, progress, LIMIT_S)
    if options.save is not None:
        kept = [{"measured": each.model_dump(mode="json"), "steps_s": steps_s} for each, steps_s in found]
        options.save.write_text(json.dumps(kept), encoding="utf-8")
    return show(question, layouts, found)


def show(
    question: Question, layouts: list[Layout], found: list[tuple[Measurements, list[list[float]]]]
) -> int:
    """Both tables; 0 where step times meet the goals."""
    print("Step time (median of the rounds)")
    good = compare(question, layouts, *found[0], waiting=True)
    print("\nCPU seconds of a rank (median over ranks and rounds), what it waits for left out")
    compare(question, layouts, *found[1], waiting=False)
    return 0 if good else 1


def compare(
    question: Question,
    layouts: list[Layout],
    measured: Measurements,
    steps_s: list[list[float]],
    waiting: bool,
) -> bool:
    cluster = cluster_from(profile_of(measured, "calibrated"), "calibrated")
    question = question.model_copy(update={"cluster": cluster})
    estimates = [time_estimate(question, layout) for layout in layouts]
    planned = [each.step_time_s - (0.0 if waiting else each.by_kind["bubble"]) for each in estimates]
    middle = [statistics.median(each) for each in steps_s]
    print(f"{'layout':66} {'planned':>8} {'measured':>8} {'ratio':>5} {'quartiles':>13}  planned by kind, ms")
    for text, estimate, plan_s, took_s, all_s in zip(
        LAYOUTS, estimates, planned, middle, steps_s, strict=True
    ):
        kinds = " ".join(
            f"{kind} {1e3 * s:.0f}" for kind in TIME_KINDS if (s := estimate.by_kind[kind]) > 5e-4
        )
        low, high = np.percentile(all_s, [25, 75])
        numbers = f"{1e3 * plan_s:5.0f} ms {1e3 * took_s:5.0f} ms {plan_s / took_s:5.2f}"
        print(f"{text:66} {numbers} {1e3 * low:5.0f} to {1e3 * high:4.0f}  {kinds}")
    ratios = np.array(planned) / np.array(middle)
    within = int(np.sum(np.abs(ratios - 1.0) <= WITHIN))
    order = spearman(planned, middle)
    print(
        f"within {100 * WITHIN:.0f} %: {within} of {len(layouts)} (goal {LEAST_WITHIN}); "
        f"Spearman {order:.2f} (goal {LEAST_SPEARMAN})"
    )
    return within >= LEAST_WITHIN and order >= LEAST_SPEARMAN


def _stand_in() -> dict[str, Any]:
    """A cluster to complete the layouts with: which device it is decides nothing there."""
    memory = {"value": 4 * 2**30, "source": "assumed: 4 GiB a rank"}
    return {
        "name": "local", "device": {"base": "cpu", "memory_bytes": memory}, "gpus_per_node": RANKS,
        "num_nodes": 1, "intra_node": "loopback", "inter_node": "loopback", "nics_per_node": 1,
        "communicator_bytes": {"value": 2**22, "source": "assumed"}, "cores_per_node": core_count(),
    }  # fmt: skip


def _terminal_progress() -> Any:
    if not sys.stderr.isatty():
        return lambda what, share: None
    return lambda what, share: print(f"\r{100 * share:3.0f} % {what:60}", end="", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
