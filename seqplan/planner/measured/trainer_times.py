"""How far off the times of each trainer are on each device, over all publications."""

from __future__ import annotations

from collections.abc import Iterable

from seqplan.planner.measured.compared_row import ComparedRow
from seqplan.planner.measured.published_comparison import ComparedSource
from seqplan.planner.measured.published_figures import time_errors
from seqplan.planner.timing.trainer_time import MeasuredTimes


def trainer_times(sources: Iterable[ComparedSource]) -> tuple[MeasuredTimes, ...]:
    """One entry for a trainer's runs on a device that set no constant, one for those that did.

    A run that two publications list, such as a whole cell of a sweep, counts once.
    """
    runs: dict[tuple[str, str, bool], dict[str, ComparedRow]] = {}
    seen: dict[str, ComparedRow] = {}
    for source in sources:
        for row in source.rows:
            if row.time_error is not None:
                one = f"{row.implementation} {row.device} {row.layout} {row.cell[1:]} {row.published_step_s}"
                seen.setdefault(one, row)
    for one, row in seen.items():
        runs.setdefault((row.implementation, row.device, row.time_fitted), {})[one] = row
    found = []
    for trainer, device, fitted in sorted(runs):
        errors = time_errors(list(runs[trainer, device, fitted].values()))
        assert errors is not None
        found.append(
            MeasuredTimes(
                trainer=trainer,
                device=device,
                fitted=fitted,
                runs=errors.rows,
                median_error=errors.median,
                p90_error=errors.p90,
            )
        )
    return tuple(found)
