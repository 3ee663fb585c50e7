"""Where a layout that somebody chose stands among all of its trainer: does it fit, how fast is the best?

Degrees and micro-batch are free; what the job decided otherwise (recomputation, sharding, schedule and its
chunks, precision, order of the mesh) is held, so that like is compared with like.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from seqplan.planner.choosing.layout_grid import candidate_tables
from seqplan.planner.choosing.layout_table import LayoutTable, from_layout
from seqplan.planner.layout import Layout
from seqplan.planner.layout_space import trainer_choices
from seqplan.planner.memory.peak_memory import peak_memory
from seqplan.planner.question import Pins, Question
from seqplan.planner.results import Reason
from seqplan.planner.rules.legality import sieve, verdict
from seqplan.planner.time_model import time_table

Degrees = tuple[int, int, int, int]
"""dp, pp, tp, sp."""


@dataclass(frozen=True)
class Choice:
    """A chosen layout beside the fastest of its kind that fit, one for each set of degrees."""

    layout: Layout
    reasons: tuple[Reason, ...]
    """Why it would not be allowed; empty where it is."""
    peak_bytes: float
    limit_bytes: float
    step_time_s: float
    others: tuple[tuple[float, Layout], ...]
    """(step time, layout) of all degrees that fit, the fastest first."""

    @property
    def share_of_best(self) -> float:
        """Speed of the chosen layout over that of the best."""
        return min(self.others[0][0], self.step_time_s) / self.step_time_s

    @property
    def rank(self) -> int:
        """Place of its degrees among all, from 1."""
        return 1 + sum(time < self.step_time_s for time, each in self.others if _of(each) != _of(self.layout))


def held_pins(layout: Layout) -> Pins:
    """Everything but degrees and micro-batch that a job decides and another split can keep."""
    interleaved = layout.schedule == "interleaved"
    return Pins(
        recompute=layout.recompute,
        recompute_layers=layout.recompute_layers,
        zero_stage=layout.zero_stage,
        schedule=None if layout.pp == 1 else layout.schedule,
        num_virtual_stages=layout.num_virtual_stages if interleaved else None,
        mesh_order=layout.mesh_order,
    )


def choice(question: Question, layout: Layout, pins: Pins) -> Choice:
    """The layout and the best for each set of degrees; `pins` leaves free what may differ."""
    # What the job left whole stays whole: all layers recomputed, states over all ranks.
    has = replace(
        trainer_choices(question),
        hybrid_sharding=layout.zero_shard_size is not None,
        partial_recompute=layout.recompute_layers is not None,
    )
    row = from_layout(layout, question.train)
    memory = peak_memory(question, row)
    best: dict[Degrees, tuple[float, Layout]] = {}
    for table in candidate_tables(question, pins, has):
        standing = table.take(np.flatnonzero(sieve(question, table).costable))
        if len(standing):
            fitting = standing.take(np.flatnonzero(peak_memory(question, standing).fits))
            if len(fitting):
                _keep_best(question, fitting, best)
    return Choice(
        layout=layout,
        reasons=verdict(question, layout).reasons,
        peak_bytes=float(memory.peak_bytes[0]),
        limit_bytes=memory.limit_bytes,
        step_time_s=float(time_table(question, row).step_time_s[0]),
        others=tuple(sorted(best.values(), key=lambda item: item[0])),
    )


def _of(layout: Layout) -> Degrees:
    return layout.dp, layout.pp, layout.tp, layout.sp


def _keep_best(question: Question, table: LayoutTable, best: dict[Degrees, tuple[float, Layout]]) -> None:
    seconds = time_table(question, table).step_time_s
    for place in np.argsort(seconds, kind="stable"):
        degrees = (int(table.dp[place]), table.pp, int(table.tp[place]), int(table.sp[place]))
        if degrees not in best or seconds[place] < best[degrees][0]:
            best[degrees] = (float(seconds[place]), table.row(int(place)))
