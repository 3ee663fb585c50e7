"""What the planner answers: the JSON contract as pydantic models (`schema: seqplan-json/1`).

Bytes, seconds and fractions, never rounded; render.py is the only place that rounds.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from seqplan.planner.layout import Layout
from seqplan.planner.spec import Spec

JSON_SCHEMA = "seqplan-json/1"

MEMORY_KINDS: tuple[str, ...] = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "attention",
    "logits",
    "ring_buffers",
    "comm_buffers",
    "transient",
)
"""Allocated bytes of a rank, by what they are for. Together they are `allocated_bytes`."""

TIME_KINDS: tuple[str, ...] = ("compute", "recompute", "tp", "sp", "pp", "dp", "bubble", "optimizer")
"""Seconds of a step on the critical path, by cause. Together they are `step_time_s`."""


class Reason(Spec):
    """One broken rule, with its numbers and the values that would work."""

    rule: str
    message: str


class StageMemory(Spec):
    """The fullest rank of one pipeline stage."""

    stage: int
    allocated_bytes: float
    overhead_bytes: float
    peak_bytes: float
    by_kind: dict[str, float] = Field(description="allocated bytes, one entry for each of MEMORY_KINDS")
    overhead_by_kind: dict[str, float] = Field(description="context, communicators, fragmentation")


class MemoryEstimate(Spec):
    """Memory of every stage; the worst stage's figures stand at the top."""

    allocated_bytes: float
    overhead_bytes: float
    peak_bytes: float
    limit_bytes: float = Field(description="device memory less the user's head-room")
    worst_stage: int
    stages: tuple[StageMemory, ...]


class TimeEstimate(Spec):
    """One optimizer step."""

    step_time_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    by_kind: dict[str, float] = Field(description="seconds, one entry for each of TIME_KINDS")
    bubble_fraction: float = Field(
        description="share of the step that the average stage waits in the pipeline"
    )
    notes: tuple[str, ...] = Field(default=(), description="assumptions such as which overlaps were counted")


class ScoredLayout(Spec):
    """One layout with everything that we say about it.

    memory and time are null where it is not legal, and where the trainer lacks an option that decides which
    tensors there are (zero_stage, attention, kernel, optimizer, gradient_bytes): a reason says so.
    """

    layout: Layout
    legal: bool
    fits: bool
    runnable: bool = Field(description="the chosen implementation can train it")
    reasons: tuple[Reason, ...] = ()
    warnings: tuple[str, ...] = ()
    memory: MemoryEstimate | None = None
    time: TimeEstimate | None = None


class Rejected(Spec):
    """How many candidates fell to one rule, with one of them as example.

    A candidate counts once, under the first rule that it breaks (memory comes last), so that the counts and
    `fitting` add up to `candidates`.
    """

    rule: str
    count: int
    example: str


class PlayedLeaders(Spec):
    """What the event simulation of the leaders' pipelines changed."""

    played: int = Field(description="leaders with a pipeline that were near enough to matter")
    differ: int = Field(description="of these, whose step time the simulation changed")
    largest_difference: float = Field(description="closed form / simulation - 1, its largest size")
    pick_changed: bool
    text: str


class SensitivityChange(Spec):
    """A rate that would change the pick."""

    rate: str
    factor: float = Field(description="of the profile's rate")
    layout: Layout = Field(description="the pick then")
    gain_fraction: float = Field(description="of the step time that today's pick would take then")


class Sensitivity(Spec):
    """Whether the pick stays the pick when rates are 20 % lower or higher."""

    verdict: Literal["stable", "close call"]
    text: str
    changes: tuple[SensitivityChange, ...]


class TrainingJob(Spec):
    """Steps, time and cost of training on so many tokens with the pick."""

    tokens: int
    steps: int = Field(description="optimizer steps, the last one rounded up")
    days: float
    gpu_hours: float


class ParetoPoint(Spec):
    """One choice: the fastest layout of so many GPUs that needs no more than so much memory."""

    gpus: int
    layout: Layout
    step_time_s: float
    peak_bytes: float = Field(description="of the fullest rank")
    gpu_hours_a_step: float


class FreePick(Spec):
    """What the search picks with nothing pinned, beside a layout that is another."""

    pick: ScoredLayout
    more_by_kind: dict[str, float] = Field(
        description="seconds that the layout takes more, by TIME_KINDS; empty where its time is not known"
    )


class Suggestion(Spec):
    """The answer of `suggest`."""

    schema_: Literal["seqplan-json/1"] = Field(default="seqplan-json/1", serialization_alias="schema")
    pick: ScoredLayout | None
    ranked: tuple[ScoredLayout, ...]
    candidates: int = Field(description="combinations after canonicalisation and before legality")
    legal: int
    fitting: int
    rejected: tuple[Rejected, ...]
    would_fit: tuple[str, ...] = Field(description="when nothing fits: what would make the nearest miss fit")
    nearest_miss: ScoredLayout | None = None
    broken_by_all: tuple[Reason, ...] = Field(
        default=(), description="when nothing is legal: the rules that every candidate breaks"
    )
    able_trainers: tuple[str, ...] = Field(
        default=(), description="where one rule is broken by all: built-in trainers that have a legal layout"
    )
    with_other_trainers: tuple[ScoredLayout, ...] = ()
    sensitivity: Sensitivity | None = None
    event_simulation: PlayedLeaders | None = Field(
        default=None, description="null where no leader has a pipeline"
    )
    job: TrainingJob | None = Field(default=None, description="with --tokens: the whole training")
    free_pick: FreePick | None = Field(
        default=None, description="with pins, on up to 512 devices: the pick without them, where it differs"
    )
    pareto: tuple[ParetoPoint, ...] = Field(
        default=(), description="with --top: what less memory or fewer GPUs cost in time"
    )
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    elapsed_s: float
