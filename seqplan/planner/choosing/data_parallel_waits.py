"""What a step waits for over dp x sp, by the states that ZeRO shards, and what would take less of it.

With ZeRO 3 most of it is not the gradients: every micro-batch gathers every layer's weights twice. That is
asked of the two models themselves: the step and the memory of the layouts that do it less often.
"""

from __future__ import annotations

from collections.abc import Iterator

from seqplan.planner.choosing.layout_table import from_layout
from seqplan.planner.layout import Layout
from seqplan.planner.memory_model import memory_estimate
from seqplan.planner.question import Question
from seqplan.planner.reading.integers import divisors
from seqplan.planner.results import TimeEstimate
from seqplan.planner.rules.legality import verdict
from seqplan.planner.time_model import time_estimate, time_table

LARGE = 0.2
"""Share of the step from which on it is worth a sentence."""

LEAST_GAIN = 0.02
"""Of the step; what gains less does not lessen it."""

GIB = 2.0**30

NAMES = {
    0: "gradients",
    1: "gradients and gathered weights",
    2: "gradients and gathered weights",
    3: "weights' gathers and gradients' reduction",
}
"""What travels over dp x sp, by zero_stage; first what takes longer."""

AGAIN = {2: "reduces the gradients", 3: "gathers the weights and reduces the gradients"}
"""What each micro-batch does again."""


def lessening(question: Question, layout: Layout, time: TimeEstimate) -> str:
    """Why the wait is long and what would take less; nothing where it is short or comes once a step."""
    waited_s = time.by_kind["dp"]
    if waited_s <= LARGE * time.step_time_s or layout.zero_stage not in AGAIN:
        return ""
    table = from_layout(layout, question.train)
    once_s = float(time_table(question, table).once["dp"][0])
    count = int(table.num_microbatches[0])
    if count < 2 or once_s > 0.5 * waited_s:
        return ""
    told = [
        text
        for name, other in _others(layout, count)
        if (text := _instead(question, name, other, time.step_time_s))
    ]
    cause = f"each of the {count} micro-batches {AGAIN[layout.zero_stage]} anew"
    return f"{cause}: {' and '.join(told)}, instead of {_shown_s(time.step_time_s)}" if told else cause


def _others(layout: Layout, micro_batches: int) -> Iterator[tuple[str, Layout]]:
    """The layouts that do it less often: fewer micro-batches, or states that stay whole."""
    fewer = layout.micro_batch_size * divisors(micro_batches)[1]
    yield f"micro_batch_size={fewer}", layout.model_copy(update={"micro_batch_size": fewer})
    stage = layout.zero_stage - 1
    yield f"zero_stage={stage}", layout.model_copy(update={"zero_stage": stage})


def _instead(question: Question, name: str, layout: Layout, now_s: float) -> str:
    """The step with it, and whether it fits; nothing where it cannot be run or gains nothing."""
    found = verdict(question, layout)
    if not found.legal or not found.runnable:
        return ""
    step_s = time_estimate(question, layout).step_time_s
    if step_s > (1.0 - LEAST_GAIN) * now_s:
        return ""
    memory = memory_estimate(question, layout)
    beyond = max(stage.peak_bytes for stage in memory.stages) - memory.limit_bytes
    room = f" (but needs {beyond / GIB:,.1f} GiB more than there is)" if beyond > 0 else ""
    return f"{name} takes {_shown_s(step_s)} a step{room}"


def _shown_s(seconds: float) -> str:
    if seconds >= 100.0:
        return f"{seconds:,.0f} s"
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{1e3 * seconds:.3g} ms"
