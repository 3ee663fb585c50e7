"""Refines a profile by finished runs: least squares of log(predicted / measured) over a few named factors.

A factor is fitted only where the runs determine it: its effect on the step times, less what the other factors
can imitate, must be felt. What they do not determine stays as it was, and is said with the reason.
Gauss-Newton with bounds; the derivative of log time by log factor is the share of the step that the factor
decides, so the problem is close to linear and a few steps do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from seqplan.planner.calibration.factors import FACTORS, scaled
from seqplan.planner.calibration.run_records import Run
from seqplan.planner.cluster_spec import ClusterSpec
from seqplan.planner.errors import SeqplanError
from seqplan.planner.implementation import ImplementationSpec
from seqplan.planner.question import Question
from seqplan.planner.spec import Spec
from seqplan.planner.time_model import time_estimate

Floats = NDArray[np.float64]

LEAST_EFFECT = 0.03
"""Share of the step time that a factor must decide by itself, root mean square over the runs: with less, a
few percent of noise in a step time would move it by as much again."""

DIFFERENCE = 0.01
"""Step of the numerical derivative, in the factor's logarithm."""

MOST_STEPS = 30
SMALL_STEP = 1e-6


class FittedFactor(Spec):
    """One number, before and after; `why_not` says why the runs left it as it was."""

    name: str
    before: float
    after: float
    effect: float = Field(description="share of the step time that it decides, root mean square over runs")
    at_bound: bool = False
    why_not: str = ""


class FittedRun(Spec):
    """One run: measured, and predicted with the profile before and after."""

    path: str
    layout: str
    steps: int
    measured_s: float
    before_s: float
    after_s: float


class FitReport(Spec):
    """What a fit changed, and how much closer the runs are."""

    factors: tuple[FittedFactor, ...]
    runs: tuple[FittedRun, ...]
    error_before: float = Field(description="root mean square of log(predicted / measured)")
    error_after: float


@dataclass(frozen=True)
class Fit:
    """The refined profile and the report."""

    cluster: ClusterSpec
    report: FitReport


def fit_runs(
    cluster: ClusterSpec, runs: Sequence[Run], load: Callable[[str], ImplementationSpec], source: str
) -> Fit:
    """`source` is what a fitted number's source begins with."""
    for run in runs:
        _check_device(cluster, run)
    problem = _Problem(cluster, runs, load)
    effects = problem.effects(np.zeros(len(FACTORS)))
    chosen, why_not = determined(effects)
    found = np.zeros(len(FACTORS))
    found[chosen] = problem.solve(chosen)
    before, after = problem.log_errors(np.zeros(len(FACTORS))), problem.log_errors(found)
    factors = {FACTORS[index]: math.exp(found[index]) for index in chosen}
    refined = scaled(cluster, factors, source)
    return Fit(
        refined,
        FitReport(
            factors=tuple(
                FittedFactor(
                    name=factor.name,
                    before=float(factor.value(cluster)),
                    after=float(factor.value(cluster)) * math.exp(found[index]),
                    effect=_rms(effects[:, index]),
                    at_bound=index in chosen and problem.at_bound(index, float(found[index])),
                    why_not=why_not.get(index, ""),
                )
                for index, factor in enumerate(FACTORS)
            ),
            runs=tuple(
                FittedRun(
                    path=run.path,
                    layout=run.header.layout.degrees_text,
                    steps=run.steps,
                    measured_s=run.step_time_s,
                    before_s=run.step_time_s * math.exp(before[index]),
                    after_s=run.step_time_s * math.exp(after[index]),
                )
                for index, run in enumerate(runs)
            ),
            error_before=_rms(before),
            error_after=_rms(after),
        ),
    )


def determined(effects: Floats) -> tuple[list[int], dict[int, str]]:
    """Which columns the rows determine, and why not the others.

    Of those that the rest can imitate, the one that matters least falls first: what it explained goes to the
    others, and its true value was closest to mattering nothing.
    """
    chosen, why_not = list(range(effects.shape[1])), {}
    while chosen:
        imitable = [
            index
            for index in chosen
            if _rms(_without(effects[:, index], effects[:, [x for x in chosen if x != index]])) < LEAST_EFFECT
        ]
        if not imitable:
            break
        index = min(imitable, key=lambda each: _rms(effects[:, each]))
        whole = _rms(effects[:, index])
        if whole < LEAST_EFFECT:
            why_not[index] = f"decides {100 * whole:.1f} % of the runs' time, too little to be seen"
        elif len(chosen) > len(effects):
            runs = f"{len(effects)} runs do" if len(effects) > 1 else "1 run does"
            why_not[index] = f"{runs} not determine {len(chosen)} factors; add other layouts"
        else:
            why_not[index] = "the runs cannot tell it from the other factors; add other layouts"
        chosen.remove(index)
    return chosen, why_not


class _Problem:
    """Predictions of the runs, as a function of the logarithms of all factors."""

    def __init__(
        self, cluster: ClusterSpec, runs: Sequence[Run], load: Callable[[str], ImplementationSpec]
    ) -> None:
        self.cluster, self.runs = cluster, runs
        self.trainers = {run.header.implementation: load(run.header.implementation) for run in runs}
        bounds = [factor.bounds(cluster) for factor in FACTORS]
        self.low, self.high = np.array([low for low, _ in bounds]), np.array([high for _, high in bounds])

    def log_errors(self, logs: Floats) -> Floats:
        cluster = scaled(
            self.cluster, {factor: math.exp(each) for factor, each in zip(FACTORS, logs, strict=True)}
        )
        errors = []
        for run in self.runs:
            header = run.header
            question = Question(
                model=header.model,
                cluster=cluster.for_gpus(header.gpus),
                gpus=header.gpus,
                train=header.train,
                implementation=self.trainers[header.implementation],
            )
            errors.append(math.log(time_estimate(question, header.layout).step_time_s / run.step_time_s))
        return np.array(errors)

    def effects(self, at: Floats, of: Sequence[int] | None = None) -> Floats:
        """Derivatives of the log times by the logarithms of the factors."""
        columns = []
        for index in range(len(FACTORS)) if of is None else of:
            step = np.zeros(len(FACTORS))
            step[index] = DIFFERENCE
            # One-sided at a bound.
            above = at + step if at[index] + DIFFERENCE <= self.high[index] else at
            below = at - step if at[index] - DIFFERENCE >= self.low[index] else at
            width = float(above[index] - below[index])
            columns.append((self.log_errors(above) - self.log_errors(below)) / width)
        return np.stack(columns, axis=1)

    def solve(self, chosen: Sequence[int]) -> Floats:
        """The chosen logarithms that leave the least squares."""
        whole = np.zeros(len(FACTORS))
        if not chosen:
            return np.zeros(0)
        low, high = self.low[chosen], self.high[chosen]
        errors = self.log_errors(whole)
        for _ in range(MOST_STEPS):
            slopes, inner = self.effects(whole, chosen), whole[chosen]
            # Those at a bound that would leave it are held there.
            pull = -slopes.T @ errors
            free = ~(((inner <= low) & (pull < 0)) | ((inner >= high) & (pull > 0)))
            if not free.any():
                break
            move = np.zeros(len(chosen))
            move[free] = np.linalg.lstsq(slopes[:, free], -errors, rcond=None)[0]
            share = 1.0
            while True:
                trial = whole.copy()
                trial[chosen] = np.clip(inner + share * move, low, high)
                now = self.log_errors(trial)
                if now @ now <= errors @ errors or share < 1e-3:
                    break
                share /= 2.0
            moved = float(np.max(np.abs(trial - whole)))
            if now @ now > errors @ errors:
                break
            whole, errors = trial, now
            if moved < SMALL_STEP:
                break
        return whole[chosen]

    def at_bound(self, index: int, value: float) -> bool:
        return not self.low[index] + SMALL_STEP < value < self.high[index] - SMALL_STEP


def _check_device(cluster: ClusterSpec, run: Run) -> None:
    ours, theirs = cluster.device, run.header.cluster.device
    on_cpu = run.header.device == "cpu"
    if on_cpu != (ours.kind == "cpu") or (not on_cpu and ours.name != theirs.name):
        ran_on = "a CPU" if on_cpu else theirs.name
        raise SeqplanError(
            f"{run.path}: ran on {ran_on}, and {cluster.name} describes {ours.name}.",
            "Give the profile of the machine that it ran on.",
        )


def _without(column: Floats, others: Floats) -> Floats:
    """What the other columns cannot imitate."""
    if others.shape[1] == 0:
        return column
    imitated: Floats = others @ np.linalg.lstsq(others, column, rcond=None)[0]
    return column - imitated


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.mean(values**2)))
