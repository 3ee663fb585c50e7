"""Seconds of one step's pipeline in closed form, for arrays of layouts; event_simulation.py is its judge.

1F1B: stage b works through its micro-batches, m (f_b + w_b). Before its first forward it waits for the
forwards of the k stages before it, after its last backward for their backwards. Behind it lie D seconds of
later stages, which it fills with its warm-up forwards at the start and with as many backwards at the end:

    T_b = sum over earlier (f + w) + m (f_b + w_b) + max(0, D - k f_b) + max(0, D - k w_b)

with D the sum over the k later stages of f + w. The step is the largest T_b. Where all stages are alike it
is (m + p - 1)(f + w), the formula of Narayanan et al. 2104.04473, 2.2. v chunks a rank shorten all waiting
v-fold; zbv fills it with weight gradients (Qi et al. 2401.10241, table 2: F + B - 2W, nothing where the
three take equal time), as long as there are any: one micro-batch still passes all stages forth and back, and
only the weight gradients, half of a backward, are left to fill with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from seqplan.planner.activations import Floats


def pipeline_s(
    schedule: str,
    chunks: int,
    microbatches: Any,
    stages: Sequence[tuple[Any, Any]],
    transfer_s: Any = 0.0,
) -> Floats:
    """The whole step; `stages` holds (forward, backward) seconds of each stage, one object a kind of stage.

    `transfer_s`: a hop between stages that computation hides, so that it costs only while the pipe fills.
    """
    count = len(stages)
    share = 1.0 / chunks if schedule == "interleaved" else 1.0
    whole: Any = sum(forward + backward for forward, backward in stages)
    earlier: Any = 0.0
    longest: Any = 0.0
    for place, (forward, backward) in enumerate(stages):
        own = forward + backward
        # Of neighbours that are alike the last one waits longest.
        if place + 1 == count or stages[place + 1] is not stages[place]:
            later = whole - earlier - own
            behind = np.minimum(count - 1 - place, microbatches - 1)
            if schedule == "gpipe":
                waiting = earlier + later
            elif schedule == "zbv":
                through = sum(each + 0.5 * back for each, back in stages)
                waiting = np.maximum(through + microbatches * (0.5 * backward - own), 0.0)
            else:
                start = np.maximum(later - behind * forward, 0.0)
                # With so few micro-batches the last forward comes before that wait, not long after it.
                waited = np.where(microbatches - 1 <= count - 1 - place, start, 0.0)
                waiting = earlier + start + np.maximum(later - behind * backward - waited, 0.0)
            longest = np.maximum(longest, microbatches * own + share * waiting)
        earlier = earlier + own
    filling = 2.0 * (count - 1 + (chunks - 1) * count) * transfer_s
    return np.asarray(longest + filling)
