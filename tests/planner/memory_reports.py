"""How the tests of reports about memory ask: built-in models, clusters and trainers, one layout at a time."""

from __future__ import annotations

from typing import Any

from seqplan import profiles
from seqplan.planner.choosing.state_notes import STATE_KINDS
from seqplan.planner.cluster_spec import ClusterSpec
from seqplan.planner.layout import Layout
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.question import Question
from seqplan.planner.results import MemoryEstimate
from seqplan.planner.search import score
from seqplan.planner.train_spec import TrainSpec
from tests.planner.samples import layout

HEADROOM = 0.05
"""What the command line keeps free by default."""


def ask(
    model: str | ModelSpec,
    where: str | ClusterSpec,
    gpus: int,
    trainer: str = "seqplan",
    *,
    seq_len: int = 1024,
    batch: int = 8,
    **train: Any,
) -> Question:
    spec = profiles.load_model(model)[0] if isinstance(model, str) else model
    machines = profiles.load_cluster(where) if isinstance(where, str) else where
    given: dict[str, Any] = {"headroom_fraction": HEADROOM, **train}
    return Question(
        model=spec,
        cluster=machines.for_gpus(gpus),
        gpus=gpus,
        train=TrainSpec(seq_len=seq_len, global_batch_size=batch, **given),
        implementation=profiles.load_implementation(trainer),
    )


def estimate(asked: Question, **fields: Any) -> tuple[Layout, MemoryEstimate]:
    chosen = layout(asked, **fields)
    memory = score(asked, chosen).memory
    assert memory is not None
    return chosen, memory


def worst(memory: MemoryEstimate) -> dict[str, float]:
    return memory.stages[memory.worst_stage].by_kind


def held(by_kind: dict[str, float]) -> float:
    return sum(by_kind[kind] for kind in STATE_KINDS)
