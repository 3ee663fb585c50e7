"""A step's timeline in the Chrome trace event format, which ui.perfetto.dev and chrome://tracing open.

A process a stage with one track; complete events ("X") with micro-batch, chunk and phase as arguments, times
in microseconds. The file is made piece by piece: deep pipelines of many micro-batches have a million slices.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import Layout
from seqplan.planner.output_file import write_whole
from seqplan.planner.question import Question
from seqplan.planner.reading.typed_form import typed_flags
from seqplan.planner.rules.legality import verdict
from seqplan.planner.timing.step_timeline import Timeline, step_timeline

US = 1e6
"""Microseconds in a second."""

NS = 3
"""Decimals of a microsecond: Perfetto counts nanoseconds."""


def chrome_trace(timeline: Timeline, about: dict[str, object]) -> Iterator[str]:
    """The file's text in pieces; `about` stands in it as otherData."""
    yield f'{{"otherData": {json.dumps(about)},\n"displayTimeUnit": "ms",\n"traceEvents": [\n'
    for stage, name in enumerate(timeline.stages):
        for kind, arguments in (
            ("process_name", {"name": name}),
            ("process_sort_index", {"sort_index": stage}),
            ("thread_name", {"name": "every rank of the stage"}),
        ):
            event = {"name": kind, "ph": "M", "pid": stage, "tid": 0, "args": arguments}
            yield json.dumps(event) + ",\n"
    last = len(timeline.slices) - 1
    for number, each in enumerate(timeline.slices):
        span = {
            "name": each.name,
            "cat": each.kind,
            "ph": "X",
            "pid": each.stage,
            "tid": 0,
            "ts": round(each.start_s * US, NS),
            "dur": round(round(each.end_s * US, NS) - round(each.start_s * US, NS), NS),
            "args": each.details,
        }
        yield json.dumps(span) + (",\n" if number < last else "\n")
    yield "]}\n"


def write_trace(question: Question, layout: Layout, path: Path) -> None:
    """The simulated step of a layout as a file; an error where it cannot be timed."""
    found = verdict(question, layout)
    if not found.costable:
        why = " ".join(reason.message for reason in found.reasons)
        raise SeqplanError(f"--trace: a layout without a step time has no timeline: {why}")
    timeline = step_timeline(question, layout)
    about = {
        "model": question.model.name,
        "cluster": question.cluster.name,
        "devices": question.gpus,
        "trainer": question.implementation.name,
        "seq_len": question.train.seq_len,
        "global_batch_size": question.train.global_batch_size,
        "layout": typed_flags(layout.model_dump(exclude_none=True)),
        "step_time_s": timeline.step_time_s,
    }
    write_whole(path, chrome_trace(timeline, about))
