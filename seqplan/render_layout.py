"""The answer of `explain`: one layout in full, legal or not, memory and time of it by stage and kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.planner.choosing.completion import Completion
from seqplan.planner.layout import Layout
from seqplan.planner.memory.kept_tensors import KeptTensor
from seqplan.planner.question import Question
from seqplan.planner.reading.typed_form import typed_flags
from seqplan.planner.results import FreePick, MemoryEstimate, ScoredLayout, StageMemory, TimeEstimate
from seqplan.render import bars, block, count, duration, gib, listing, percent, plural, show, size, table
from seqplan.render_choices import choices, degrees, stage_layers
from seqplan.render_comparison import against, free_pick
from seqplan.render_memory import memory_line, peak_title, stage_bars
from seqplan.render_suggestion import asked

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

STAGES_ABREAST = 8
"""Stages in one table: what 80 columns hold."""

NO_GRADIENTS = "gradients 0.00: the stage is fullest before its first backward has made any"


def show_layout(
    scored: ScoredLayout,
    question: Question,
    notes: tuple[str, ...] = (),
    rest: Completion | None = None,
    placed: tuple[str, ...] = (),
    free: FreePick | None = None,
) -> None:
    """Everything that we say about one layout."""
    memory, time = scored.memory, scored.time
    parts: list[RenderableType | None] = [
        asked(question),
        verdict(scored),
        listing("Why not", [f"{reason.rule}: {reason.message}" for reason in scored.reasons], "bold red"),
        not_given(scored, rest) if rest is not None else None,
        listing("With nothing pinned", with_nothing_pinned(scored, rest, free)),
        shape(scored, question),
        listing("Where the groups lie", placed),
    ]
    if memory is not None:
        worst = next(stage for stage in memory.stages if stage.stage == memory.worst_stage)
        title = peak_title(worst)
        parts += [stage_bars(title, worst), *(stages(memory) if len(memory.stages) > 1 else [])]
    if time is not None:
        parts += [time_bars(time), listing("Assumed for the time", time.notes)]
    parts += [listing("Warnings", scored.warnings, "bold yellow"), listing("Notes", notes)]
    show(parts)


def verdict(scored: ScoredLayout) -> Group:
    """Legal, fits, runnable: in one sentence each, on two or three lines."""
    lines = [choices(scored.layout)]
    if not scored.legal:
        lines.append(f"not legal: {plural(len(scored.reasons), 'broken rule')}")
    elif scored.memory is not None:
        fits = "fits" if scored.fits else "does not fit"
        lines.append(f"{fits}: memory {memory_line(scored.memory)}")
    if scored.legal and not scored.runnable:
        unknown = " it, and what it would need is not known" if scored.memory is None else " it"
        lines.append(f"the chosen trainer cannot run{unknown}")
    if scored.time is not None:
        rate = f"{count(scored.time.tokens_per_s_per_gpu)} tokens/s a device"
        lines.append(
            f"time {duration(scored.time.step_time_s)} a step, {rate}, MFU {percent(scored.time.mfu)}"
        )
    good = scored.legal and scored.fits and scored.runnable
    return block(degrees(scored.layout), lines, "bold green" if good else "bold red")


def not_given(scored: ScoredLayout, rest: Completion) -> Group | None:
    """The defaults that were taken, and in one line the best layout that the same words could mean."""
    if not rest.defaults:
        return None
    ours, best = scored.layout, rest.best
    lines = [f"defaults taken: {typed_flags(rest.defaults)}"]
    if best is None:
        lines.append(f"best with {ours.degrees_text}: nothing with what was given is legal and fits")
    elif best.layout == ours:
        lines.append(f"best with {ours.degrees_text}: these defaults")
    else:
        changed = {name: value for name, value in best.layout if value != getattr(ours, name)}
        found = f"best with {ours.degrees_text}: {typed_flags(changed)}"
        if best.memory is not None:
            found += f": {gib(best.memory.peak_bytes)} of {gib(best.memory.limit_bytes)} GiB"
        if best.time is not None:
            found += f", {duration(best.time.step_time_s)} a step"
        lines.append(found)
    return block("Not given", lines)


def with_nothing_pinned(scored: ScoredLayout, rest: Completion | None, free: FreePick | None) -> list[str]:
    """The free pick beside this layout, and beside the best with what was typed, which is fairer to it."""
    if free is None:
        return []
    lines, best = [free_pick(scored, free)], None if rest is None else rest.best
    if best is None or best.time is None or free.pick.time is None:
        return lines
    if best.layout not in (scored.layout, free.pick.layout):
        lines.append(f"the best with {best.layout.degrees_text} {against(best.time, free.pick.time)}")
    return lines


def shape(scored: ScoredLayout, question: Question) -> Group | None:
    """What one rank holds: sequences, tokens, layers; only for a layout where these divide."""
    if not scored.legal:
        return None
    layout, train = scored.layout, question.train
    replica = train.global_batch_size // layout.dp
    batch = f"{replica // layout.micro_batch_size:,} micro-batches of {layout.micro_batch_size}"
    lines = [
        f"each dp rank: {plural(replica, 'sequence')} a step, as {batch}",
        f"each sp rank: {count(train.seq_len // layout.sp)} of {count(train.seq_len)} tokens of a sequence",
        f"{plural(layout.pp, 'stage')} of {stage_layers(layout.stage_layers)} layers",
        f"mesh, outermost to innermost: {', '.join(layout.mesh_order)}",
    ]
    return block("What a rank holds", lines)


def stages(memory: MemoryEstimate) -> list[Group]:
    """GiB by kind, a row a kind and a column a stage; a deep pipeline takes several tables side by side."""
    return [
        _stages(memory, memory.stages[first : first + STAGES_ABREAST])
        for first in range(0, len(memory.stages), STAGES_ABREAST)
    ]


def _stages(memory: MemoryEstimate, shown: tuple[StageMemory, ...]) -> Group:
    kinds = [
        kind
        for kind in shown[0].by_kind
        if kind == "gradients" or any(stage.by_kind[kind] for stage in memory.stages)
    ]
    rows = [[kind.replace("_", " "), *(gib(stage.by_kind[kind]) for stage in shown)] for kind in kinds]
    rows.append(["allocated", *(gib(stage.allocated_bytes) for stage in shown)])
    rows += [
        [kind.replace("_", " "), *(gib(stage.overhead_by_kind[kind]) for stage in shown)]
        for kind in shown[0].overhead_by_kind
    ]
    rows.append(["peak", *(gib(stage.peak_bytes) for stage in shown)])
    title = f"Memory of every stage s at its own peak moment, GiB (limit {gib(memory.limit_bytes)})"
    if not all(stage.by_kind["gradients"] for stage in shown):
        title += f"\n{NO_GRADIENTS}"
    return table(title, ["", *(f"s{stage.stage}" for stage in shown)], rows, left=("",))


def time_bars(time: TimeEstimate) -> Group:
    """Seconds of a step by cause."""
    parts = [(kind, seconds, duration(seconds)) for kind, seconds in time.by_kind.items() if seconds > 0]
    title = f"Time of a step: {duration(time.step_time_s)}"
    if time.bubble_fraction > 0:
        title += f" (a stage waits {percent(time.bubble_fraction)} of it in the pipeline)"
    return bars(title, parts, time.step_time_s)


def show_tensors(tensors: tuple[KeptTensor, ...], layout: Layout) -> None:
    """Every tensor of one layer and micro-batch, and what of them stays until the backward."""
    rows = [
        [each.name, each.kind, count(each.size_bytes), "kept" if each.kept else "recomputed", each.formula]
        for each in tensors
    ]
    kept = sum(each.size_bytes for each in tensors if each.kept)
    rows.append(["kept by a layer", "", count(kept), size(kept), ""])
    title = f"Tensors of one layer, one micro-batch of {layout.micro_batch_size} on one rank"
    columns = ["tensor", "kind", "bytes", "", "elements x bytes"]
    show([table(title, columns, rows, left=("tensor", "kind", "", "elements x bytes"))])
