"""Seconds of one step's pipeline in closed form, for arrays of layouts; event_simulation.py is its judge.

1F1B: stage b works through its micro-batches, m (f_b + w_b). Before its first forward it waits for the
forwards of the k stages before it, after its last backward for their backwards. Behind it lie D seconds of
later stages, which it fills with its warm-up forwards at the start and with as many backwards at the end:

    T_b = sum over earlier (f + w) + m (f_b + w_b) + max(0, D - k f_b) + max(0, D - k w_b)

with D the sum over the k later stages of f + w. The step is the largest T_b. Where all stages are alike it
is (m + p - 1)(f + w), the formula of Narayanan et al. 2104.04473, 2.2. v chunks a rank shorten all waiting
v-fold.

Zero bubbles (Qi et al. 2401.10241): a backward is an input gradient, which others wait for, and a weight
gradient, which fills bubbles. ZB-H1 has (p - 1)(f + b - w) of them where stages are alike; ZB-H2 and ZB-V
have (p - 1)(f + b - 2 w) and (p - 1)(b - w) if a stage may begin its next step before others have ended this
one, and else those of a stage that begins late: (p - 1) f, and half of that in a V, where the way is half
as long. With few micro-batches there is little to fill with: one alone passes all stages forth and back.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from seqplan.planner.activations import Floats
from seqplan.planner.schedule_orders import SPLIT_BACKWARD

Passes = tuple[Any, Any, Any]
"""Seconds of one micro-batch on a stage: forward, backward, and the weight gradients' part of that."""


def pipeline_s(
    schedule: str,
    chunks: int,
    microbatches: Any,
    stages: Sequence[Passes],
    transfer_s: Any = 0.0,
    steps_overlap: bool = False,
    heaviest_s: Sequence[Any] = (),
) -> Floats:
    """The whole step; `stages` has the passes of each stage, one object a kind of stage.

    `transfer_s`: a hop between stages that computation hides, so that it costs only while the pipe fills.
    `steps_overlap`: a stage begins its next step when its own part of this one is done.
    `heaviest_s`: of each stage a micro-batch's seconds in the chunk that takes longest, if chunks differ.
    """
    alike = [list(run) for _, run in itertools.groupby(stages, key=id)]
    parts = 3 if schedule in SPLIT_BACKWARD else 2
    whole = [sum(len(run) * run[0][part] for run in alike) for part in range(parts)]
    earlier: list[Any] = [0.0] * parts
    longest: Any = 0.0
    place = -1
    for run in alike:
        # Of neighbours that are alike the last one waits longest.
        place, passes = place + len(run), run[0]
        if len(run) > 1:
            earlier = [sofar + (len(run) - 1) * passes[part] for part, sofar in enumerate(earlier)]
        if schedule in ("zbh1", "zbh2"):
            waiting = _handcrafted(schedule, place, microbatches, stages, earlier, whole, steps_overlap)
        elif schedule == "zbv":
            waiting = _v_shaped(place, microbatches, stages, earlier, whole, steps_overlap)
        else:
            waiting = _unsplit(schedule, chunks, place, microbatches, stages, earlier, whole)
            if heaviest_s and schedule == "interleaved":
                # A round of another stage's heaviest chunk, once: later ones catch up in its light ones.
                # With less than two rounds, of half of the micro-batches.
                others = [each for at, each in enumerate(heaviest_s) if stages[at] is not passes]
                more = reduce(np.maximum, others, 0.0) - (passes[0] + passes[1]) / chunks
                times = np.minimum(microbatches // 2, len(stages))
                waiting = waiting + times * np.maximum(more, 0.0)
        longest = np.maximum(longest, microbatches * (passes[0] + passes[1]) + waiting)
        earlier = [sofar + passes[part] for part, sofar in enumerate(earlier)]
    filling = 2.0 * (len(stages) - 1 + (chunks - 1) * len(stages)) * transfer_s
    return np.asarray(longest + filling)


def _unsplit(
    schedule: str,
    chunks: int,
    place: int,
    microbatches: Any,
    stages: Sequence[Passes],
    earlier: Sequence[Any],
    whole: Sequence[Any],
) -> Any:
    """What a stage waits under 1F1B, interleaved or gpipe."""
    forward, backward, _ = stages[place]
    before = (earlier[0] + earlier[1]) / chunks
    later = (whole[0] + whole[1] - forward - backward) / chunks - before
    if schedule == "gpipe":
        return before + later
    # Of v chunks all but the last go round all stages once before the first backward.
    count = len(stages)
    rounds = np.minimum(microbatches, count)
    around = [(chunks - 1) * part / chunks for part in whole]
    most = count - 1 - place if chunks == 1 else 2 * (count - 1 - place) + (chunks - 1) * rounds
    behind = np.minimum(most, microbatches * chunks - 1) / chunks
    start = np.maximum(around[0] + later - behind * forward, 0.0)
    # With so few micro-batches the last forward comes before that wait, not long after it.
    waited = np.where(microbatches * chunks - 1 <= most, np.minimum(start, later), 0.0)
    return before + start + np.maximum(around[1] + later - behind * backward - waited, 0.0)


def _handcrafted(
    schedule: str,
    place: int,
    microbatches: Any,
    stages: Sequence[Passes],
    earlier: Sequence[Any],
    whole: Sequence[Any],
    steps_overlap: bool,
) -> Any:
    """What a stage waits under ZB-H1 or ZB-H2, or the first stage for it, whichever is longer."""
    twice = 2 if schedule == "zbh2" else 1
    forward, backward, weight = stages[place]
    into = backward - weight
    before = [earlier[0], earlier[1] - earlier[2]]
    later = whole[0] + whole[1] - whole[2] - sum(before) - forward - into
    most = len(stages) - 1 - place
    behind = np.minimum(twice * most, microbatches - 1)
    start = np.maximum(later - behind * forward, 0.0)
    waited = np.where(microbatches - 1 <= twice * most, start, 0.0)
    inside = start + np.maximum(later - behind * backward - waited, 0.0)
    # The first stage ends with the last input gradient's way back to it and with its own last weight
    # gradient, while those that this stage has put off are still due.
    put_off = np.minimum(twice * place, microbatches - 1)
    first = sum(before) + inside - (put_off + 1.0) * weight + stages[0][2]
    return np.maximum(inside + (0.0 if steps_overlap else before[0]), first)


def _v_shaped(
    place: int,
    microbatches: Any,
    stages: Sequence[Passes],
    earlier: Sequence[Any],
    whole: Sequence[Any],
    steps_overlap: bool,
) -> Any:
    """What a stage waits under ZB-V, or the first stage for it; a chunk is half of a stage."""
    forward, backward, weight = stages[place]
    into, behind = backward - weight, len(stages) - 1 - place
    before = [earlier[0], earlier[1] - earlier[2]]
    later = [whole[0] - before[0] - forward, whole[1] - whole[2] - before[1] - into]
    # In the order of _v_shaped in schedule_orders.py: down and up again to the first forward of chunk 1, up
    # and down again to the first input gradient, and the same two ways back at the end.
    inside = np.maximum(later[0] - behind * forward, 0.0)
    inside = inside + np.maximum(0.5 * sum(before) - place * forward, 0.0)
    inside = inside + np.maximum(0.5 * sum(before) - place * into, 0.0)
    inside = inside + np.maximum(later[1] - 0.5 * behind * backward, 0.0)
    last = 0.5 * (sum(before) + stages[0][2]) - (place + 0.5) * weight
    waiting = inside + np.maximum(0.0 if steps_overlap else 0.5 * before[0], last)
    alone = sum(before) + sum(later) - (microbatches - 1) * forward
    return np.maximum(waiting, alone)
