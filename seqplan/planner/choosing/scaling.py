"""What the second half of the devices brings: said where it is little, because a slow link eats it.

"Two cards are no faster than one" and "the second node brings nothing" are what people find out by buying
them. The same question is answered for half of the devices, and the two steps are compared.
"""

from __future__ import annotations

from dataclasses import replace

from seqplan.planner.choosing.scan import scan
from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout_space import check_pins, trainer_choices
from seqplan.planner.question import Pins, Question
from seqplan.planner.results import TimeEstimate
from seqplan.planner.time_model import time_estimate

LITTLE = 1.5
"""Speed-up of twice the devices below which it is worth a warning; 2 would be perfect."""

MOST_DEVICES = 512
"""Beyond, halves are still so many that links saturate alike, and the second search would cost as much as
the first."""


COMPUTE_AT_LEAST = 0.9
"""Share of its seconds that a matmul keeps, at least, when it grows, as larger ones run faster (assumed)."""


def half_the_devices(question: Question, pins: Pins, time: TimeEstimate) -> tuple[str, ...]:
    """One sentence where the step on half of the devices is less than LITTLE times as long."""
    half, step_time_s = _half(question), time.step_time_s
    if half is None or question.gpus > MOST_DEVICES:
        return ()
    more = question.gpus / half
    if COMPUTE_AT_LEAST * more * time.by_kind["compute"] >= LITTLE * more / 2 * step_time_s:
        return ()  # the computation alone takes that long on the half
    fewer = question.model_copy(update={"gpus": half, "cluster": question.cluster.for_gpus(half)})
    try:
        check_pins(fewer, pins)
    except SeqplanError:
        return ()
    found = scan(fewer, pins, replace(trainer_choices(fewer), uneven_splits=False), 1)
    if not found.best:
        return ()
    alone_s = time_estimate(fewer, found.best[0]).step_time_s
    gain = alone_s / step_time_s
    if gain >= LITTLE * more / 2:
        return ()
    times = f"{more:g} times as many devices"
    brings = f"make it x{gain:.2f} as fast" if gain >= 1 else f"make it slower (x{gain:.2f})"
    return (
        f"{times} {brings}: the best on {half}, {found.best[0].degrees_text}, takes {_shown(alone_s)} a step "
        f"of the same batch, the pick {_shown(step_time_s)}; a larger batch or faster links would change it.",
    )


def _shown(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _half(question: Question) -> int | None:
    """Half of the devices, in whole nodes where there are several; None where there is no half."""
    per_node = question.cluster.gpus_per_node
    if question.gpus <= per_node:
        return question.gpus // 2 or None
    return max(question.gpus // per_node // 2, 1) * per_node
