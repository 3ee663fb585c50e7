"""Pipelines whose stages are processes on fewer cores than processes: a stage that waits leaves its core.

Every time of the model is that of a rank with its share s of a core, which is what it gets while all ranks
work. In a pipeline they do not: those that wait leave their share to the others, up to a whole core each.
With k of p stages at work a stage takes max(s, k / p) of its time at the share. A step is m + p - 1 rounds
of the stages; k grows by one a round while it fills, and falls by one while it drains, so it takes

    mean stage x (sum over rounds of max(s, k / p))

which is m + p - 1 stages where every rank has a core, and m, the work over all cores, where cores are few.
Unequal stages take at least their pipeline at full speed, s of what it is at the share.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def on_shared_cores_s(
    whole_s: Any, mean_stage_s: Any, core_share: float, stages: int, microbatches: Any
) -> Any:
    """Seconds of the pipeline; `whole_s`, and `mean_stage_s` of one micro-batch, are at `core_share`."""
    if core_share >= 1.0:
        return whole_s
    rounds = microbatches + stages - 1.0
    most = np.minimum(stages, microbatches)
    weights: Any = 0.0
    for working in range(1, stages + 1):
        ramps = np.where(working < most, 2.0, 0.0)
        flat = np.where(working == most, rounds - 2.0 * (most - 1.0), 0.0)
        weights = weights + (ramps + flat) * max(core_share, working / stages)
    return np.maximum(mean_stage_s * weights, core_share * whole_s)
