"""One published row and what we say about it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from seqplan.planner.layout import Layout
from seqplan.planner.spec import Spec

Cell = tuple[str, str, int, int, int, int]
"""The group, the precision, the model's size, tokens and sequences of a step, devices."""


class ComparedRow(Spec):
    """One published row and what we say about it."""

    row: str
    group: str
    implementation: str = ""
    device: str = Field(default="", description="that the run was on")
    parameters: int = Field(default=0, description="of the model")
    layout: Layout
    seq_len: int
    outcome: Literal["ran", "out_of_memory", "likely_out_of_memory", "failed"]
    published_bytes: float | None
    predicted_bytes: float = Field(description="of the kinds and the stage that the source measured")
    error: float | None = Field(description="predicted / published - 1")
    memory_fitted: bool = Field(default=False, description="its memory set constants of the inventory")
    peak_bytes: float = Field(description="predicted for the fullest stage, overheads included")
    limit_bytes: float
    over_limit: bool
    runnable: bool = Field(default=True, description="the trainer's rules allow the layout")
    estimated_step_s: float = Field(default=0.0, description="predicted, also where nothing was published")
    nodes: int = Field(default=1, description="nodes that the run used")
    global_batch_size: int = 1
    published_step_s: float | None = None
    predicted_step_s: float | None = None
    time_error: float | None = Field(default=None, description="predicted / published - 1")
    time_fitted: bool = Field(default=False, description="its step time set constants of trainer or device")

    @property
    def cell(self) -> Cell:
        """What rows share that differ in the layout alone: they did the same job."""
        job = (self.parameters, self.seq_len, self.global_batch_size)
        return (self.group, self.layout.precision, *job, self.layout.world_size)
