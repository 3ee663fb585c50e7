"""Answers of the planner made by hand, so that rendering and the command line are tested without a search.

The figures are round on purpose (GiB and seconds), so that what is printed can be read off.
"""

from __future__ import annotations

from typing import Any

from seqplan.planner.layout import Layout
from seqplan.planner.results import (
    MEMORY_KINDS,
    TIME_KINDS,
    MemoryEstimate,
    Reason,
    Rejected,
    ScoredLayout,
    StageMemory,
    Suggestion,
    TimeEstimate,
)

GIB = 2.0**30


def layout(**fields: Any) -> Layout:
    given: dict[str, Any] = {"dp": 2, "pp": 2, "tp": 4, "sp": 1, "micro_batch_size": 1, "precision": "bf16"}
    return Layout(**given | {"schedule": "1f1b", "stage_layers": (6, 6)} | fields)


def stage_memory(stage: int, activations_gib: float) -> StageMemory:
    """Each kind 1 GiB but the activations; 2 GiB of overheads."""
    by_kind = dict.fromkeys(MEMORY_KINDS, GIB) | {"activations": activations_gib * GIB}
    overheads = {"context": 0.5 * GIB, "communicators": 0.5 * GIB, "fragmentation": GIB}
    allocated = sum(by_kind.values())
    return StageMemory(
        stage=stage,
        allocated_bytes=allocated,
        overhead_bytes=2 * GIB,
        peak_bytes=allocated + 2 * GIB,
        by_kind=by_kind,
        overhead_by_kind=overheads,
    )


def memory(activations_gib: tuple[float, ...] = (10.0, 5.0), limit_gib: float = 76.0) -> MemoryEstimate:
    """One stage for each entry; the first is the worst when it is the largest."""
    stages = tuple(stage_memory(stage, size) for stage, size in enumerate(activations_gib))
    worst = max(stages, key=lambda stage: stage.peak_bytes)
    return MemoryEstimate(
        allocated_bytes=worst.allocated_bytes,
        overhead_bytes=worst.overhead_bytes,
        peak_bytes=worst.peak_bytes,
        limit_bytes=limit_gib * GIB,
        worst_stage=worst.stage,
        stages=stages,
    )


def time(step_time_s: float, *, sp_s: float = 0.0) -> TimeEstimate:
    by_kind = dict.fromkeys(TIME_KINDS, 0.0) | {"compute": step_time_s - sp_s, "sp": sp_s}
    return TimeEstimate(
        step_time_s=step_time_s,
        tokens_per_s_per_gpu=1234.5,
        mfu=0.4321,
        by_kind=by_kind,
        bubble_fraction=0.125,
    )


def scored(step_time_s: float = 4.0, *, sp_s: float = 0.0, **fields: Any) -> ScoredLayout:
    return ScoredLayout(
        layout=layout(**fields),
        legal=True,
        fits=True,
        runnable=True,
        memory=memory(),
        time=time(step_time_s, sp_s=sp_s),
    )


def illegal() -> ScoredLayout:
    reasons = (
        Reason(rule="tp_heads", message="tp=3 does not divide num_attention_heads=16; use 1, 2, 4, 8 or 16."),
        Reason(rule="sp_seq_len", message="seq_len=1000 is not a multiple of 16; use 992 or 1008."),
    )
    return ScoredLayout(layout=layout(tp=3), legal=False, fits=False, runnable=False, reasons=reasons)


def suggestion() -> Suggestion:
    """A pick, a rival that waits for its ring, and two rules that rejected."""
    rival = scored(5.0, sp_s=1.5, dp=1, sp=2, attention="ring")
    return Suggestion(
        pick=scored(),
        ranked=(scored(), rival),
        candidates=4321,
        legal=1000,
        fitting=250,
        rejected=(
            Rejected(rule="tp_heads", count=3000, example="dp1,pp1,tp3,sp1: tp=3 does not divide 16 heads"),
            Rejected(rule="memory", count=750, example="dp8,pp1,tp1,sp1: needs 97.1 GiB of 76.0"),
        ),
        would_fit=(),
        notes=("vocabulary padded from 50257 to 50304",),
        warnings=("sp=2 crosses a node",),
        elapsed_s=0.123,
    )


def nothing() -> Suggestion:
    """Nothing fits: the nearest miss needs 20 GiB of 15.2."""
    miss = scored().model_copy(update={"fits": False, "memory": memory(limit_gib=15.2)})
    return suggestion().model_copy(
        update={
            "pick": None,
            "ranked": (),
            "fitting": 0,
            "nearest_miss": miss,
            "would_fit": ("recompute full: 14.1 GiB", "32 devices: 12.0 GiB"),
        }
    )
