"""The timeline of one step of one layout: what every stage does from when to when, as the estimate has it.

The pipeline is the event simulation's. Behind it stands what happens once a step: the gradients' reduction as
far as nothing hides it, beginning where the stage ends; then, when the longest has ended, for all stages
together the sum of a tied embedding's gradients, the optimizer, and what a trainer loses to a full memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from seqplan.planner.choosing.layout_table import from_layout
from seqplan.planner.layout import Layout
from seqplan.planner.memory.model_states import head_stage
from seqplan.planner.question import Question
from seqplan.planner.schedule_orders import chunks_per_stage
from seqplan.planner.time_model import TimeTable, time_table
from seqplan.planner.timing.event_simulation import Played, play
from seqplan.planner.timing.pipeline_program import EXCHANGE, KINDS

ONCE = {
    "pp": "tied embedding's gradients",
    "optimizer": "optimizer",
    "compute": "blocks freed and asked for again",
}
"""What follows the reduction, in order, by the kind of time that it counts as."""


@dataclass(frozen=True)
class Slice:
    """What one stage does from `start_s` to `end_s`."""

    stage: int
    name: str
    kind: str
    start_s: float
    end_s: float
    details: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Timeline:
    """All slices of a step, those of a stage in order."""

    stages: tuple[str, ...]
    """What each stage holds, in words."""
    slices: tuple[Slice, ...]
    step_time_s: float
    """The estimate's; where steps overlap (zero-bubble schedules) less than the time to the last slice."""


def step_timeline(question: Question, layout: Layout) -> Timeline:
    """One step of a layout that can be timed."""
    table = from_layout(layout, question.train)
    times = time_table(question, table, played=True)
    microbatches = int(table.num_microbatches[0])
    hop = times.stages[0].hop if layout.schedule == "1f1b" else times.stages[0].hidden_hop
    played = play(
        layout.schedule,
        [stage.durations(layout.schedule) for stage in times.stages],
        microbatches,
        hop,
        layout.num_virtual_stages,
    )
    chunks = chunks_per_stage(layout.schedule, layout.num_virtual_stages)
    pace = 1.0
    if question.cluster.cores_per_node is not None:  # a rank that waits leaves its cores to the others
        once = sum(float(np.max(seconds)) for seconds in times.once.values())
        pace = (float(times.step_time_s[0]) - once) / float(played.step_s()[0])
    pipeline_s = pace * float(played.step_s()[0])
    slices = []
    for stage in range(layout.pp):
        own = _pipeline_slices(played, stage, chunks, pace)
        slices += own + _last_slices(times, stage, own[-1].end_s, pipeline_s)
    names = tuple(_stage_name(question, layout, stage) for stage in range(layout.pp))
    return Timeline(names, tuple(slices), float(times.step_time_s[0]))


def _pipeline_slices(played: Played, stage: int, chunks: int, pace: float) -> list[Slice]:
    """A slice for every action of the stage's list; all seconds times `pace`."""
    ops = played.program
    kinds = ops.kind[stage]
    forwards = np.flatnonzero(kinds == KINDS.index("forward"))
    backwards = np.flatnonzero((kinds != KINDS.index("forward")) & (kinds != EXCHANGE))
    found = []
    for at in range(kinds.size):
        kind = int(kinds[at])
        if kind == EXCHANGE and not ops.transfers[stage, at]:
            continue
        phase = "warm-up" if at < backwards[0] else "steady" if at <= forwards[-1] else "drain"
        details: dict[str, object] = {"phase": phase}
        if kind == EXCHANGE:
            name = "send and receive" if ops.transfers[stage, at] > 1 else "send or receive"
            word = "p2p"
        else:
            word = KINDS[kind]
            details["micro_batch"] = micro_batch = int(ops.micro_batch[stage, at])
            name = f"{word.replace('_', ' ')} {micro_batch}"
            if chunks > 1:
                details["chunk"] = chunk = int(ops.chunk[stage, at])
                name += f" chunk {chunk}"
        start, end = pace * float(played.start_s[stage, at, 0]), pace * float(played.end_s[stage, at, 0])
        found.append(Slice(stage, name, word, start, end, details))
    return found


def _last_slices(times: TimeTable, stage: int, ended_s: float, pipeline_s: float) -> list[Slice]:
    """What a stage does once a step, after its last backward."""
    found = []
    reduced = float(np.broadcast_to(times.stages[stage].dp_once, 1)[0])
    if reduced > 0:
        name = "gradients over dp and sp, not hidden"
        found.append(Slice(stage, name, "dp", ended_s, ended_s + reduced))
    now = pipeline_s + float(np.broadcast_to(times.once["dp"], 1)[0])
    for kind, name in ONCE.items():
        seconds = float(np.broadcast_to(times.once[kind], 1)[0])
        if seconds > 0:
            found.append(Slice(stage, name, kind, now, now + seconds))
            now += seconds
    return found


def _stage_name(question: Question, layout: Layout, stage: int) -> str:
    """stage 0 (layers 0 to 15, embedding)."""
    first = sum(layout.stage_layers[:stage])
    count = layout.stage_layers[stage]
    held = [f"layers {first} to {first + count - 1}" if count > 1 else f"layer {first}"] if count else []
    if layout.schedule == "interleaved" or layout.schedule == "zbv":
        held = [f"{count} layers in {chunks_per_stage(layout.schedule, layout.num_virtual_stages)} chunks"]
    table = from_layout(layout, question.train)
    held += ["embedding"] * (stage == 0) + ["head"] * (stage == head_stage(table))
    return f"stage {stage} ({', '.join(held)})"
