"""Pipelines whose stages are processes on fewer cores than processes: a stage that waits leaves its core.

Every time of the model is that of a rank with its share s of a core, which is what it gets while all ranks
work. In a pipeline they do not: those that wait leave their share to the others. Cores are never idle while a
rank could run, so a step takes no longer than the larger of its work spread over all cores (the
mean of the stages) and its pipeline at full speed (s times the time at the share). Exact where either one is
much the larger; a little too short between.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def on_shared_cores_s(whole_s: Any, mean_stage_s: Any, core_share: float) -> Any:
    """Seconds of the pipeline; `whole_s` and `mean_stage_s` (work without waiting) at `core_share`."""
    return whole_s if core_share >= 1.0 else np.maximum(core_share * whole_s, mean_stage_s)
