"""Published measurements as data: what others ran, what they measured, and what their source leaves unsaid.

One file a source (profiles/published). Rows hold facts only, in columns named after the fields of a layout,
of the training, of the model and of PublishedFacts, so that a row reads like the table it came from. What
a source does not state is an assumption, written beside the rows it concerns and shown with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from seqplan.planner.layout import Layout
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.results import MEMORY_KINDS
from seqplan.planner.spec import Spec
from seqplan.planner.train_spec import TrainSpec

GIB, MIB = 2**30, 2**20

Statistic = Literal[
    "median_error",
    "mean_error",
    "worst_error",
    "share_within",
    "out_of_memory_share",
    "finished_over_limit_share",
    "median_time_error",
    "worst_time_error",
    "time_share_within",
    "rank_correlation",
    "pick_throughput",
    "best_of_three_throughput",
    "choice_throughput",
]
"""Errors are |predicted / published - 1| of bytes, time errors of seconds a step. The last four compare the
layouts of one cell, a model on a number of devices with three finished runs or more: the median over cells of
Spearman's correlation, and the mean over cells of the throughput that the fastest predicted layout (the best
of three) measured, over the best measured; choice_throughput picks from all that were tried and that we
call legal and fitting, finished or not, and a failed pick counts as 0. out_of_memory_share: of the runs out
of memory, those predicted over the device's limit; finished_over_limit_share: the same of those that ran."""


class PublishedFacts(Spec):
    """What one row measured. Absent: the source does not say."""

    row: str = Field(description="where in the source, or the row's name there")
    peak_gib: float | None = Field(default=None, gt=0)
    peak_mib: float | None = Field(default=None, gt=0)
    outcome: Literal["ran", "out_of_memory", "likely_out_of_memory", "failed"] = Field(
        default="ran",
        description="likely: it did not finish, and memory is the cause as far as can be told; failed: "
        "nobody says why",
    )
    step_time_s: float | None = Field(default=None, gt=0)
    tokens_per_s: float | None = Field(default=None, gt=0, description="of all devices together")
    tokens_per_s_per_gpu: float | None = Field(default=None, gt=0)
    note: str = ""

    def step_seconds(self, tokens_per_step: float, devices: int) -> float | None:
        """The published seconds of one step; None where the row has no time."""
        if self.step_time_s is not None:
            return self.step_time_s
        per_device = self.tokens_per_s_per_gpu
        rate = self.tokens_per_s if per_device is None else per_device * devices
        return None if rate is None else tokens_per_step / rate

    @property
    def peak_bytes(self) -> float | None:
        """The published memory; None where the row has none."""
        if self.peak_gib is not None:
            return self.peak_gib * GIB
        return None if self.peak_mib is None else self.peak_mib * MIB


class Goal(Spec):
    """What the predictions must reach over all rows of one source."""

    statistic: Statistic
    within: float | None = Field(default=None, gt=0, description="for share_within: the largest error")
    at_most: float | None = None
    at_least: float | None = None
    below_nodes: int | None = Field(
        default=None, ge=1, description="time goals: runs on so many nodes or more do not count"
    )
    unmet_because: str = Field(default="", description="why the source allows no better, where it does not")

    @model_validator(mode="after")
    def _one_bound(self) -> Goal:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError(f"{self.statistic} needs either at_most or at_least")
        if self.statistic.endswith("share_within") != (self.within is not None):
            raise ValueError("within belongs to share_within, which needs it")
        return self

    def holds(self, value: float) -> bool:
        """Whether a statistic reaches the goal."""
        if self.at_most is not None:
            return value <= self.at_most
        assert self.at_least is not None
        return value >= self.at_least


class FittedOn(Spec):
    """Which of a source's own figures set constants that predict it; the others are the test of these."""

    step_times: Literal["none", "odd", "even"] = Field(
        default="none",
        description="every second of the rows with a step time: the first, third ..., or the others",
    )
    cells: dict[str, tuple[int, ...]] = Field(
        default_factory=dict,
        description="numbers of devices by title of the group: all step times of these cells",
    )
    rows: tuple[str, ...] = Field(default=(), description="or the step times of these rows, by name")
    memory: bool = Field(
        default=False, description="constants of the inventory were set on its memory figures"
    )
    constants: str = Field(default="", description="which constants, for the reader")

    def has_time_of(self, place: int, row: str, group: str, devices: int) -> bool:
        """Whether the step time that is the `place`-th of its source, from 1, set constants."""
        every_second = {"none": False, "odd": place % 2 == 1, "even": place % 2 == 0}[self.step_times]
        return every_second or row in self.rows or devices in self.cells.get(group, ())


class RowGroup(Spec):
    """Rows of one model on one cluster; `common` holds what all of them share."""

    title: str
    source: str = Field(description="table, figure or file of the source")
    model: str = Field(description="a built-in model; columns named after its fields change them")
    cluster: str
    implementation: str | None = Field(default=None, description="where it is not the source's")
    ran_on: str | None = Field(
        default=None, description="the device, where the cluster's only stands in for it"
    )
    common: dict[str, Any] = Field(default_factory=dict)
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    assumptions: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _rows_fit(self) -> RowGroup:
        unknown = [name for name in (*self.columns, *self.common) if name not in _HOMES]
        broken = [f"unknown column {', '.join(unknown)}"] if unknown else []
        twice = sorted({name for name in self.columns if name in self.common})
        broken += [f"{', '.join(twice)} is both common and a column"] if twice else []
        for number, row in enumerate(self.rows, 1):
            if len(row) != len(self.columns):
                broken.append(f"row {number} has {len(row)} values for {len(self.columns)} columns")
        if broken:
            raise ValueError(f"{self.title}: {'; '.join(broken)}")
        return self

    def values(self, row: tuple[Any, ...]) -> Mapping[str, Any]:
        """A row by column, what is common included; an empty cell is not said."""
        named = dict(zip(self.columns, row, strict=True))
        return {**self.common, **{key: value for key, value in named.items() if value is not None}}


class PublishedSource(Spec):
    """One publication: its rows, what is compared, and the goals."""

    name: str
    title: str
    source: str
    implementation: str
    memory: Literal["allocated", "reserved"] = Field(
        description="reserved: blocks that the caching allocator keeps count too"
    )
    stage: Literal["worst", "first"] = Field(description="whose memory: of the fullest stage, or of rank 0")
    kinds: tuple[str, ...] = Field(
        default=MEMORY_KINDS, description="which kinds the published figure counts"
    )
    assumptions: tuple[str, ...] = ()
    goals: tuple[Goal, ...] = ()
    fitted: FittedOn = FittedOn()
    groups: tuple[RowGroup, ...]

    @model_validator(mode="after")
    def _kinds_known(self) -> PublishedSource:
        unknown = [kind for kind in self.kinds if kind not in MEMORY_KINDS]
        if unknown:
            raise ValueError(f"unknown kinds {', '.join(unknown)}; known are {', '.join(MEMORY_KINDS)}")
        return self

    @model_validator(mode="after")
    def _fitted_rows_exist(self) -> PublishedSource:
        titles = {group.title for group in self.groups}
        names = {str(group.values(row).get("row")) for group in self.groups for row in group.rows}
        unknown = [*(set(self.fitted.cells) - titles), *(set(self.fitted.rows) - names)]
        if unknown:
            raise ValueError(f"fitted names no group or row of this source: {', '.join(sorted(unknown))}")
        return self


_HOMES: dict[str, str] = {
    **dict.fromkeys(ModelSpec.model_fields, "model"),
    **dict.fromkeys(TrainSpec.model_fields, "train"),
    **dict.fromkeys(Layout.model_fields, "layout"),
    **dict.fromkeys(PublishedFacts.model_fields, "facts"),
}
"""Which specification a column belongs to."""


def split_by_home(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A row's values by the specification they belong to: model, train, layout, facts."""
    homes: dict[str, dict[str, Any]] = {"model": {}, "train": {}, "layout": {}, "facts": {}}
    for name, value in values.items():
        homes[_HOMES[name]][name] = value
    return homes
