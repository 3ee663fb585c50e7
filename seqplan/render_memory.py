"""Memory of one stage in a line and as bars, for the answers of suggest and explain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.planner.results import MemoryEstimate, ScoredLayout, StageMemory
from seqplan.render import bars, gib, size

if TYPE_CHECKING:
    from rich.console import Group


def memory_line(memory: MemoryEstimate) -> str:
    free = memory.limit_bytes - memory.peak_bytes
    verdict = f"{size(free)} free" if free >= 0 else f"{size(-free)} too much"
    return (
        f"{gib(memory.peak_bytes)} of {gib(memory.limit_bytes)} GiB on stage {memory.worst_stage}, {verdict}"
    )


def stage_bars(title: str, stage: StageMemory) -> Group:
    """Memory of one stage by kind, overheads in rows of their own."""
    kinds = {**stage.by_kind, **{f"{kind} (overhead)": held for kind, held in stage.overhead_by_kind.items()}}
    parts = [(kind.replace("_", " "), held, size(held)) for kind, held in kinds.items() if held > 0]
    if stage.by_kind["gradients"] == 0:
        parts.insert(1, ("gradients (none yet)", 0.0, size(0.0)))
    return bars(title, parts, stage.peak_bytes)


def peak_title(stage: StageMemory, stages: int = 1) -> str:
    """What the bars below it show: one moment of a step, the one at which the rank holds most."""
    of = "" if stages == 1 else f" of {stages}"
    title = f"Memory of stage {stage.stage}{of}, its fullest rank at the peak moment"
    if stage.by_kind["gradients"] == 0:
        title += " (before its first backward)"
    return f"{title}: {gib(stage.peak_bytes)} GiB"


def memory_bar(scored: ScoredLayout) -> Group | None:
    memory = scored.memory
    if memory is None:
        return None
    worst = next(stage for stage in memory.stages if stage.stage == memory.worst_stage)
    return stage_bars(peak_title(worst, len(memory.stages)), worst)
