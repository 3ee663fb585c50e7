"""Simulates one rank of each pipeline stage of a layout: the true peak of its memory by kind, on no device.

Two steps, because only the first allocates the optimizer's states; the second one's peak is the answer.
Stages that differ only in how many micro-batches they hold share one recording (simulate_walk.py).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch._subclasses.fake_tensor import FakeTensorMode

from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import Layout
from seqplan.planner.memory_model import memory_estimate
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.question import Question
from seqplan.planner.schedule import one_f_one_b
from seqplan.planner.train_spec import TrainSpec
from seqplan.planner.verification import Verification, compare
from seqplan.runtime.simulation.kernel_device import differences_of, kernels_of
from seqplan.runtime.simulation.simulate_kinds import INDEX, by_kind
from seqplan.runtime.simulation.simulate_replay import Operators
from seqplan.runtime.simulation.simulate_stage import (
    FakeTrainer,
    Reduced,
    fake_group,
    fake_micro_batches,
    fullest_rank,
    operator_bodies,
)
from seqplan.runtime.simulation.simulate_tracker import Tracker
from seqplan.runtime.simulation.simulate_walk import Phase, Recording, phase_of
from seqplan.runtime.vocab_parallel import CHUNK_ELEMENTS

MAX_LOSS_PIECES = 100_000
"""Some minutes of simulation: 3 million tokens a rank of a vocabulary of 128,256."""

RECORDED_MICRO_BATCHES = 3
"""The first, one of those that find gradients, the last."""


@dataclass(frozen=True)
class Job:
    """What is simulated."""

    model: ModelSpec
    train: TrainSpec
    layout: Layout
    on_gpu: bool

    @property
    def num_microbatches(self) -> int:
        return self.train.global_batch_size // (self.layout.dp * self.layout.micro_batch_size)


@dataclass(frozen=True)
class SimulatedStage:
    """Bytes of the fullest rank of a stage in its second step."""

    by_kind: dict[str, float]
    """At the moment of the peak."""
    kept_bytes: float
    """Activations and attention that wait for their backward, at most."""

    @property
    def allocated_bytes(self) -> float:
        return sum(self.by_kind.values())


def verify(question: Question, layout: Layout) -> Verification:
    """The estimate of every stage beside its simulation, on the device of the question's cluster."""
    job = Job(question.model, question.train, layout, on_gpu=question.cluster.device.kind != "cpu")
    _check_length(job)
    kernels = differences_of(question.model.norm, layout.kernel) if job.on_gpu else []
    estimates = memory_estimate(question, layout).stages
    return compare(estimates, [stage.by_kind for stage in simulate(job)], kernels)


def _check_length(job: Job) -> None:
    """SeqplanError where the loss alone would take hours: every piece of the logits is one call."""
    tokens = job.layout.micro_batch_size * job.train.seq_len // job.layout.sp
    pieces = tokens * job.model.vocab_size // (job.layout.tp * CHUNK_ELEMENTS)
    if pieces > MAX_LOSS_PIECES:
        raise SeqplanError(
            f"seq_len={job.train.seq_len}: a rank's {tokens:,} tokens are too many to simulate, their logits "
            f"being {pieces:,} pieces of {CHUNK_ELEMENTS:,}.",
            "Verify a plan with a shorter sequence, or with more sp or tp.",
        )


def simulate(job: Job) -> list[SimulatedStage]:
    """Every stage of the layout."""
    recordings: dict[tuple[bool, bool, int], tuple[Phase, Recording]] = {}
    operators = Operators(operator_bodies())
    found = []
    for stage in range(job.layout.pp):
        kind = (stage == 0, stage == job.layout.pp - 1, job.layout.stage_layers[stage])
        if kind not in recordings:
            recordings[kind] = _recorded(job, stage, operators)
        held, recording = recordings[kind]
        actions = one_f_one_b(stage, job.layout.pp, job.num_microbatches)
        peak = held.net + recording.step(actions, job.num_microbatches).at_peak
        kept = recording.kept_between(actions, job.num_microbatches)
        kept += int(held.net[INDEX["activations"]] + held.net[INDEX["attention"]])
        found.append(SimulatedStage(by_kind(peak), float(kept)))
    return found


def simulate_whole(job: Job, stage: int) -> dict[str, float]:
    """Bytes by kind at the peak of one stage, every layer and micro-batch run: what `simulate` must equal."""
    with _rank(job, stage, Operators(operator_bodies())) as (trainer, tracker):
        batches = fake_micro_batches(trainer, job.on_gpu)
        trainer.simulate_step(batches, 0, None)
        start = len(tracker.events)
        trainer.simulate_step(batches, 1, None)
        held, step = phase_of(tracker.events[:start]), phase_of(tracker.events[start:])
        return by_kind(held.net + step.at_peak)


def _recorded(job: Job, stage: int, operators: Operators) -> tuple[Phase, Recording]:
    """What the stage holds before its second step, and a recording of that step."""
    layers = recorded_layers(job.layout, job.layout.stage_layers[stage])
    first, last = stage == 0, stage == job.layout.pp - 1
    # A stage with the same ends and, unless it is the last, one micro-batch more in flight than it works on.
    like = (0, 1 if last else 2) if first else (1, 2 if last else 3)
    with _rank(job, stage, operators) as (trainer, tracker):
        batches = fake_micro_batches(trainer, job.on_gpu)
        replicated = job.layout.zero_stage == 0
        if replicated:
            trainer.update_only()
        else:
            trainer.simulate_step(batches, 0, Reduced(one_f_one_b(*like, 1), layers, 1, whole_last=False))
        start = len(tracker.events)
        few = min(RECORDED_MICRO_BATCHES, job.num_microbatches)
        whole_last = replicated and job.layout.dp * job.layout.sp > 1
        trainer.simulate_step(batches, 1, Reduced(one_f_one_b(*like, few), layers, few, whole_last))
        recording = Recording(tracker.events[start:], job.layout.stage_layers[stage])
        return phase_of(tracker.events[:start]), recording


def recorded_layers(layout: Layout, count: int) -> tuple[int, ...]:
    """The first three and the last layer of each run of equal ones: those that recompute, and the rest.

    FSDP2 gathers the next layer but one while a layer is computed, so the third is the first like all others.
    """
    recomputed = 0
    if layout.recompute == "full":
        recomputed = count if layout.recompute_layers is None else min(layout.recompute_layers, count)
    chosen: set[int] = set()
    for start, stop in ((0, recomputed), (recomputed, count)):
        if stop > start:
            chosen |= {*range(start, min(start + 3, stop)), stop - 1}
    return tuple(sorted(chosen))


@contextmanager
def _rank(job: Job, stage: int, operators: Operators) -> Iterator[tuple[FakeTrainer, Tracker]]:
    """The trainer of a stage's fullest rank, with fake tensors and the tracker on."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)  # the meta tensors that modules are built with
    tracker = Tracker(operators)
    collecting = gc.isenabled()
    rank = fullest_rank(job.layout, stage)
    with fake_group(rank, job.layout.world_size), kernels_of("cuda" if job.on_gpu else "cpu"):
        trainer = FakeTrainer(job.model, job.train, job.layout, fake, tracker)
        gc.disable()  # so that what ends is ended by its last reference alone, the same in every run
        try:
            with fake, tracker.running():
                yield trainer, tracker
        finally:
            if collecting:
                gc.enable()
