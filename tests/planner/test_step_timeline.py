"""The timeline of a whole step: every action once, one at a time on each track, as long as the estimate."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from seqplan.planner.errors import SeqplanError
from seqplan.planner.schedule import one_f_one_b
from seqplan.planner.schedule_orders import chunks_per_stage, order
from seqplan.planner.search import score
from seqplan.planner.timing.chrome_trace import write_trace
from tests.planner.formula_cases import layout, our_trainer
from tests.planner.samples import cluster, decoder, question

LENGTH = 0.02
"""Relative: the last slice's end and the step time."""
ROUNDING_US = 0.002
"""Times are written in whole nanoseconds."""

ONCE = {"dp", "pp", "optimizer", "compute"}

SHAPES: dict[str, dict[str, Any]] = {
    "one stage": {"dp": 4, "tp": 2, "zero_stage": 2},
    "1f1b": {"pp": 4, "dp": 2},
    "1f1b, uneven, recomputed": {"pp": 4, "dp": 2, "stage_layers": (3, 3, 4, 2), "recompute": "full"},
    "interleaved": {"pp": 4, "dp": 2, "schedule": "interleaved", "num_virtual_stages": 3},
    "gpipe": {"pp": 4, "dp": 2, "schedule": "gpipe"},
    "zbh1": {"pp": 4, "dp": 2, "schedule": "zbh1"},
    "zbh2": {"pp": 4, "dp": 2, "schedule": "zbh2"},
    "zbv": {"pp": 4, "dp": 2, "schedule": "zbv"},
    "zero 3 over nodes": {"pp": 2, "dp": 8, "zero_stage": 3},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_trace_is_the_step(shape: str, tmp_path: Path) -> None:
    fields = SHAPES[shape]
    gpus = fields.get("pp", 1) * fields.get("dp", 1) * fields.get("tp", 1)
    asked = question(
        decoder(num_layers=12, tied_embeddings=True), gpus, where=cluster(), implementation=our_trainer()
    )
    chosen = layout(asked, **fields)
    time = score(asked, chosen).time
    assert time is not None
    path = tmp_path / "trace.json"
    write_trace(asked, chosen, path)
    trace = json.loads(path.read_text())
    assert trace["otherData"]["step_time_s"] == pytest.approx(time.step_time_s, rel=1e-9)

    named = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert sorted(named) == list(range(chosen.pp))
    assert all(text.startswith(f"stage {stage} (") for stage, text in named.items())
    assert "embedding" in named[0]

    tracks = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    assert len(tracks) == chosen.pp
    microbatches = asked.train.global_batch_size // chosen.dp // chosen.micro_batch_size
    chunks = chunks_per_stage(chosen.schedule, chosen.num_virtual_stages)
    for (stage, _), events in tracks.items():
        for before, after in itertools.pairwise(events):
            assert before["ts"] + before["dur"] <= after["ts"] + ROUNDING_US, (before, after)
        actions = [event for event in events if event["cat"] not in ONCE]
        if chosen.schedule in ("none", "1f1b"):
            expected = len(one_f_one_b(stage, chosen.pp, microbatches))
        else:
            expected = len(order(chosen.schedule, stage, chosen.pp, microbatches, chunks))
        assert len(actions) == expected
        for event in actions:
            if event["cat"] != "p2p":
                assert event["name"].startswith(
                    f"{event['cat'].replace('_', ' ')} {event['args']['micro_batch']}"
                )
        assert {event["cat"] for event in events} >= {"forward", "optimizer"}
    last_us = max(event["ts"] + event["dur"] for events in tracks.values() for event in events)
    assert last_us / 1e6 == pytest.approx(time.step_time_s, rel=LENGTH)


def test_phases_of_1f1b(tmp_path: Path) -> None:
    asked = question(decoder(num_layers=12), 4, where=cluster(), implementation=our_trainer())
    path = tmp_path / "trace.json"
    write_trace(asked, layout(asked, pp=4), path)
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X" and e["pid"] == 0]
    kinds = {
        phase: {event["cat"] for event in events if event["args"].get("phase") == phase} - {"p2p"}
        for phase in ("warm-up", "steady", "drain")
    }
    assert kinds == {"warm-up": {"forward"}, "steady": {"forward", "backward"}, "drain": {"backward"}}
    # 1F1B: p forwards on the first stage before its first backward.
    warm_up = [
        event for event in events if event["args"].get("phase") == "warm-up" and event["cat"] == "forward"
    ]
    assert len(warm_up) == 4


def test_a_layout_that_cannot_be_timed_has_no_trace(tmp_path: Path) -> None:
    asked = question(decoder(num_layers=12), 24, where=cluster(), implementation=our_trainer())
    with pytest.raises(SeqplanError, match="has no timeline: pp=24 makes 24 stages for 12 layers"):
        write_trace(asked, layout(asked, pp=24), tmp_path / "trace.json")
    assert list(tmp_path.iterdir()) == []
