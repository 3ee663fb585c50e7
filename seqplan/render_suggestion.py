"""The answer of `suggest`: the pick and why, the best as a table, memory by kind, and what fell.

When nothing fits, the nearest miss takes the pick's place: which term of which stage exceeds by how
much, and what would make it fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from seqplan.planner.layout import Layout
from seqplan.planner.question import Question
from seqplan.planner.results import ScoredLayout, Suggestion
from seqplan.render import (
    block,
    count,
    duration,
    gib,
    group,
    listing,
    percent,
    plural,
    show,
    size,
    table,
    text,
    width,
)
from seqplan.render_choices import attention_cell, choices, degrees, recompute_cell
from seqplan.render_comparison import differences, free_pick, why
from seqplan.render_memory import memory_bar, memory_line

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.text import Text

COLUMNS = ("", "dp", "pp", "tp", "sp", "mb", "recompute", "zero", "attn", "peak GiB", "free", "step", "MFU")
CHOICES = COLUMNS.index("peak GiB")
"""Columns before this one are choices, the others what comes of them."""
BUT = "but"
"""The column of what no other shows, where rows would read alike."""
NARROW = 24
"""Characters below which that column would fold nearly every entry."""


def show_suggestion(answer: Suggestion, question: Question) -> None:
    """Print everything; `question` only says what was asked."""
    parts: list[RenderableType | None] = [asked(question)]
    if answer.pick is None:
        parts += nothing_fits(answer)
    else:
        parts += [pick(answer, answer.pick), best(answer), memory_bar(answer.pick)]
    parts += [
        others(answer),
        front(answer),
        fallen(answer),
        listing("Warnings", answer.warnings, "bold yellow"),
        listing("Notes", answer.notes),
    ]
    show(parts)


def asked(question: Question) -> Text:
    """What was asked, in two lines."""
    cluster, train = question.cluster, question.train
    nodes = -(-question.gpus // cluster.gpus_per_node)
    where = f"{question.gpus:,} x {cluster.device.name} of {cluster.name} ({plural(nodes, 'node')})"
    batch = f"{plural(train.global_batch_size, 'sequence')} of {count(train.seq_len)} tokens a step"
    return text(
        f"{question.model.name} on {where}\n"
        f"{batch}, {question.precision}, trainer {question.implementation.name}",
        "bold",
    )


def pick(answer: Suggestion, scored: ScoredLayout) -> Group:
    """The choice in four lines, and why it is the choice."""
    lines = [choices(scored.layout)]
    if scored.memory is not None:
        lines.append(f"memory {memory_line(scored.memory)} (the fullest rank)")
    if scored.time is not None:
        rate = f"{count(scored.time.tokens_per_s_per_gpu)} tokens/s a device"
        lines.append(
            f"time {duration(scored.time.step_time_s)} a step, {rate}, MFU {percent(scored.time.mfu)}"
        )
        lines.append(f"why: {why(answer, scored)}")
    if answer.free_pick is not None:
        lines.append(f"with nothing pinned {free_pick(scored, answer.free_pick, 'the pick')}")
    if answer.job is not None:
        job = answer.job
        lines.append(
            f"{job.tokens:,} tokens: {plural(job.steps, 'step')}, {job.days:,.1f} days, "
            f"{count(job.gpu_hours)} GPU-hours"
        )
    if answer.sensitivity is not None:
        lines.append(answer.sensitivity.text)
    return block(f"Pick: {degrees(scored.layout)}", lines, "bold green")


def row(number: int, scored: ScoredLayout) -> list[str]:
    layout, memory, time = scored.layout, scored.memory, scored.time
    cells = [str(number), *(str(degree) for degree in layout.degrees.values()), str(layout.micro_batch_size)]
    cells += [recompute_cell(layout), str(layout.zero_stage), attention_cell(layout)]
    if memory is None:
        cells += ["-", "-"]
    else:
        cells += [
            f"{gib(memory.peak_bytes)} s{memory.worst_stage}",
            gib(memory.limit_bytes - memory.peak_bytes),
        ]
    return cells + ([duration(time.step_time_s), percent(time.mfu)] if time is not None else ["-", "-"])


def ranking(
    title: str, layouts: tuple[ScoredLayout, ...], more: str = "", values: Sequence[str] = ()
) -> Group:
    """The table, maybe with a column `more`; rows that show the same choices say in what they differ.

    In a last column, or below the table where it would be narrow.
    """
    rows = [row(number, scored) for number, scored in enumerate(layouts, 1)]
    first: dict[tuple[str, ...], Layout] = {}
    asides = []
    for cells, scored in zip(rows, layouts, strict=True):
        leader = first.setdefault(tuple(cells[1:CHOICES]), scored.layout)
        asides.append(", ".join(differences(scored.layout, leader)))
    columns: tuple[str, ...] = COLUMNS
    if more:
        columns, rows = (*columns, more), [[*cells, value] for cells, value in zip(rows, values, strict=True)]
    if not any(asides):
        return table(title, columns, rows)
    used = sum(2 + max(len(row[place]) for row in [columns, *rows]) for place in range(len(columns)))
    if width() - used < min(max(map(len, asides)), NARROW):
        told = [f"{number}: {aside}" for number, aside in enumerate(asides, 1) if aside]
        return group(table(title, columns, rows), block("Where rows read alike", told))
    rows = [[*cells, aside] for cells, aside in zip(rows, asides, strict=True)]
    return table(title, (*columns, BUT), rows, left=(BUT,))


def best(answer: Suggestion) -> Group:
    shown = len(answer.ranked)
    return ranking(
        f"Best {shown} of {answer.fitting:,} that fit (peak of the worst stage s, free GiB)", answer.ranked
    )


def others(answer: Suggestion) -> Group | None:
    """What the chosen trainer cannot run: the fastest where it runs nothing, else what beats the pick."""
    if not answer.with_other_trainers:
        return None
    if answer.pick is None or answer.pick.time is None:
        return ranking("Costed, but the chosen trainer cannot run these", answer.with_other_trainers)
    ours = answer.pick.time.step_time_s
    less = [percent(1 - each.time.step_time_s / ours) for each in answer.with_other_trainers if each.time]
    title = "Faster than the pick, but the chosen trainer cannot run these (memory as by its own tensors)"
    return group(
        ranking(title, answer.with_other_trainers, "less", less),
        block("What it lacks for each", lacking(answer.with_other_trainers)),
    )


def lacking(layouts: tuple[ScoredLayout, ...]) -> list[str]:
    """What the trainer lacks for each row, rows that lack the same together."""
    rows: dict[str, list[int]] = {}
    for number, scored in enumerate(layouts, 1):
        for reason in scored.reasons:
            rows.setdefault(reason.message.split(";")[0].rstrip("."), []).append(number)
    return [f"{', '.join(map(str, numbers))}: {lacks}" for lacks, numbers in rows.items()]


def front(answer: Suggestion) -> Group | None:
    """What less memory or fewer GPUs cost in time."""
    if not answer.pareto:
        return None
    rows = [
        [
            count(point.gpus),
            gib(point.peak_bytes),
            duration(point.step_time_s),
            f"{point.gpu_hours_a_step:,.3g}",
            f"{degrees(point.layout)}, {choices(point.layout)}",
        ]
        for point in answer.pareto
    ]
    title = (
        "Nothing beats these in time, memory and GPUs at once: the fastest of all, with 25, 50 and 75 % of "
        "the memory kept free, and on fewer GPUs"
    )
    return table(title, ("GPUs", "peak GiB", "step", "GPU-h a step", "layout"), rows, left=("layout",))


def nothing_fits(answer: Suggestion) -> list[RenderableType | None]:
    """The nearest miss and what would make it fit."""
    miss = answer.nearest_miss
    if miss is None or miss.memory is None:
        return [nothing_legal(answer), listing("What would be legal", answer.would_fit)]
    memory = miss.memory
    worst = next(stage for stage in memory.stages if stage.stage == memory.worst_stage)
    kind = max(worst.by_kind, key=lambda name: worst.by_kind[name])
    limit, over = gib(memory.limit_bytes), memory.peak_bytes - memory.limit_bytes
    title = f"Nothing fits: none of {plural(answer.legal, 'legal layout')} stays below {limit} GiB."
    lines = [
        f"nearest miss: {degrees(miss.layout)}, {choices(miss.layout)}",
        f"stage {worst.stage} needs {gib(memory.peak_bytes)} GiB, {size(over)} too much; "
        f"its largest part is {kind.replace('_', ' ')} with {gib(worst.by_kind[kind])} GiB",
    ]
    return [
        block(title, lines, "bold red"),
        memory_bar(miss),
        listing("What would make it fit", answer.would_fit),
    ]


def nothing_legal(answer: Suggestion) -> Group:
    """The rule that all candidates break, if there is one, and the trainers that do not."""
    each = f"each of {plural(answer.candidates, 'candidate')} breaks a rule."
    why_none = " ".join(reason.message for reason in answer.broken_by_all) or each
    lines = []
    if answer.able_trainers:
        lines.append(f"built-in trainers that can: {', '.join(answer.able_trainers)} (--implementation)")
    elif any(reason.rule.startswith("trainer_") for reason in answer.broken_by_all):
        lines.append("no other built-in trainer can")
    return block(f"No layout is legal: {why_none}", lines, "bold red")


def fallen(answer: Suggestion) -> Group | None:
    """How many candidates fell, by rule, with an example each."""
    if not answer.rejected:
        return None
    title = f"{answer.candidates:,} candidates, {answer.legal:,} legal, {answer.fitting:,} fit; what fell:"
    rows = ([count(fell.count), fell.rule, fell.example] for fell in answer.rejected)
    return table(title, ("count", "rule", "example"), rows, left=("rule", "example"))
