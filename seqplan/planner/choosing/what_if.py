"""What would make it fit: every line is found by really trying, never by a rule of thumb.

Tried are: each pinned field let go, options that the trainer lacks, more GPUs (doubled, and then whole nodes
between the doubling that fits and the one before), shorter sequences, and fewer layers. What was in the space
anyway and is not enough is said as such.
"""

from __future__ import annotations

from dataclasses import replace

from seqplan.planner.choosing.between import fewest_between
from seqplan.planner.choosing.layout_table import RECOMPUTES
from seqplan.planner.choosing.scan import GIB, Scan, scan
from seqplan.planner.cluster_spec import ClusterSpec
from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import AXES, Layout
from seqplan.planner.layout_space import Choices, check_pins, trainer_choices
from seqplan.planner.memory_model import memory_estimate
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.question import Pins, Question
from seqplan.planner.reading.integers import divisors
from seqplan.planner.reading.typed_form import typed_flag, typed_flags

MOST_GPUS = 64
"""How many times the asked GPUs are tried."""


def what_would_be_legal(question: Question, pins: Pins) -> tuple[str, ...]:
    """When no candidate is legal: which pin to let go, or a rounder number of GPUs, and the best then."""
    lines = _without_pins(question, pins)
    near = _with_nearest_degree(question, pins)
    if near is not None and not any(line.endswith(near.partition(": ")[2]) for line in lines):
        lines.append(near)
    return tuple(lines or _with_rounder_gpus(question, pins))


def what_would_fit(question: Question, pins: Pins) -> tuple[str, ...]:
    """When nothing fits: what does, each line a layout that was found."""
    lines = _without_pins(question, pins)
    lines += _with_missing_options(question, pins)
    lines += _with_more_gpus(question, pins)
    lines += _with_shorter_sequences(question, pins)
    lines += _with_fewer_layers(question, pins)
    tried = _tried(question, pins)
    if tried:
        devices = f"{question.gpus} GPU{'s' * (question.gpus > 1)}"
        lines.append(f"Not enough on {devices}: {tried}.")
    return tuple(lines)


def _best(question: Question, pins: Pins, choices: Choices | None = None) -> Layout | None:
    """The fastest layout that fits, of those that the trainer (or a trainer with `choices`) can run."""
    found = _scan(question, pins, choices)
    return found.best[0] if found is not None and found.best else None


def _scan(question: Question, pins: Pins, choices: Choices | None) -> Scan | None:
    try:
        check_pins(question, pins)
    except SeqplanError:
        return None
    has = trainer_choices(question) if choices is None else choices
    return scan(question, pins, has, top=1, runnable_only=choices is None)


def _shown(question: Question, layout: Layout) -> str:
    memory = memory_estimate(question, layout)
    peak, limit = memory.peak_bytes / GIB, memory.limit_bytes / GIB
    options = (
        f"micro_batch_size={layout.micro_batch_size} recompute={layout.recompute_text} "
        f"zero_stage={layout.zero_stage}"
    )
    return f"{layout.degrees_text} {options}: {peak:.1f} of {limit:.1f} GiB on stage {memory.worst_stage}"


def _typed(layout: Layout, name: str) -> str:
    """The field of a layout as its flag; recompute with the layers, where they are not all."""
    fields = (name, "recompute_layers") if name == "recompute" and layout.recompute_layers else (name,)
    return typed_flags({field: getattr(layout, field) for field in fields})


def _free(pins: Pins, *names: str) -> Pins:
    return pins.model_copy(update=dict.fromkeys(names))


def _without_pins(question: Question, pins: Pins) -> list[str]:
    """Each pin let go alone; all of them together where one is not enough."""
    given = pins.given()
    lines = []
    for name in given:
        layout = _best(question, _free(pins, name))
        if layout is not None:
            without = f"Without {typed_flag(name, given[name])} (best with {_typed(layout, name)})"
            lines.append(f"{without}: {_shown(question, layout)}")
    if not lines and len(given) > 1:
        layout = _best(question, Pins())
        if layout is not None:
            lines.append(f"Without all of {typed_flags(given)}: {_shown(question, layout)}")
    return lines


def _with_nearest_degree(question: Question, pins: Pins) -> str | None:
    """A pinned degree that breaks a rule, at the nearest value that works: where the user was heading."""
    for axis in AXES:
        asked = getattr(pins, axis)
        if asked is None or asked == 1:
            continue
        for degree in sorted(divisors(question.gpus), key=lambda value: (abs(value - asked), value)):
            layout = _best(question, pins.model_copy(update={axis: degree})) if degree != asked else None
            if layout is not None:
                near = f"With {typed_flag(axis, degree)}, the nearest to {typed_flag(axis, asked)} that works"
                return f"{near}: {_shown(question, layout)}"
    return None


def _with_missing_options(question: Question, pins: Pins) -> list[str]:
    """Recomputation that the trainer does not have and that would be enough: every inventory covers it."""
    has = trainer_choices(question)
    wider = replace(has, recompute=tuple(RECOMPUTES))
    if pins.recompute is not None or wider == has:
        return []
    layout = _best(question, pins, wider)
    if layout is None:
        return []
    trainer = (
        f"A trainer with recompute={layout.recompute}, which {question.implementation.name} does not have"
    )
    return [f"{trainer}: {_shown(question, layout)}"]


def _with_more_gpus(question: Question, pins: Pins) -> list[str]:
    """The first doubling that fits, or fewer nodes between it and the one before.

    Pinned degrees stay, but dp takes the new GPUs where it must.
    """
    keep_dp = any(getattr(pins, axis) is None for axis in AXES if axis != "dp")
    free_pins = pins if keep_dp else _free(pins, "dp")

    def best_on(gpus: int) -> Layout | None:
        return _best(_on_more(question, gpus), free_pins)

    whole = question.full_cluster or question.cluster
    gpus = question.gpus
    while gpus < MOST_GPUS * question.gpus:
        fewer, gpus = gpus, _whole_nodes(whole, 2 * gpus)
        layout = best_on(gpus)
        if layout is not None:
            least = fewest_between(whole, fewer, gpus, layout, best_on)
            nodes = -(-least.gpus // whole.gpus_per_node)
            on = f"{least.gpus} GPUs ({nodes} node{'s' * (nodes > 1)}; {least.told})"
            return [f"{on}: {_shown(_on_more(question, least.gpus), least.found)}"]
    return [f"Up to {gpus} GPUs were tried: nothing fits."]


def _whole_nodes(cluster: ClusterSpec, gpus: int) -> int:
    """So many GPUs, or a few more where they would be no whole nodes."""
    size = cluster.gpus_per_node
    return gpus if gpus <= size else -(-gpus // size) * size


def _on_more(question: Question, gpus: int) -> Question:
    """The question on more devices; ranks that share the memory of a node only get more nodes like theirs."""
    cluster = question.full_cluster or question.cluster
    if cluster.cores_per_node is None:
        cluster = cluster.for_gpus(gpus)
    return question.model_copy(update={"gpus": gpus, "cluster": cluster})


def _with_rounder_gpus(question: Question, pins: Pins) -> list[str]:
    """The largest of 2^k and 3 x 2^k GPUs that has a layout: degrees are products of what they divide."""
    power = 1 << (question.gpus.bit_length() - 1)
    rounder = {power, power // 2, 3 * power // 2, 3 * power // 4} - {0}
    for gpus in sorted((n for n in rounder if n < question.gpus), reverse=True):
        fewer = question.model_copy(update={"gpus": gpus})
        layout = _best(fewer, pins)
        if layout is not None:
            return [f"{gpus} of the {question.gpus} GPUs: {_shown(fewer, layout)}"]
    return []


def _with_shorter_sequences(question: Question, pins: Pins) -> list[str]:
    seq_len = question.train.seq_len
    while seq_len % 2 == 0 and seq_len > 1:
        seq_len //= 2
        shorter = question.model_copy(
            update={"train": question.train.model_copy(update={"seq_len": seq_len})}
        )
        layout = _best(shorter, pins)
        if layout is not None:
            return [f"seq_len={seq_len}: {_shown(shorter, layout)}"]
    return []


def _with_fewer_layers(question: Question, pins: Pins) -> list[str]:
    """How large a model of this shape fits: found by halving the layers that are in doubt."""
    if pins.stage_layers is not None:
        return []
    model, fits, too_many = question.model, 0, question.model.num_layers
    shown = ""
    while too_many - fits > 1:
        layers = (fits + too_many) // 2
        smaller = ModelSpec.model_validate({**model.model_dump(), "num_layers": layers})
        asked = question.model_copy(update={"model": smaller})
        layout = _best(asked, pins)
        if layout is None:
            too_many = layers
        else:
            fits = layers
            size = smaller.parameters() / 1e9
            of = f"{layers} of the {model.num_layers} layers ({size:.1f} B parameters)"
            shown = f"{of}: {_shown(asked, layout)}"
    return [shown] if shown else []


def _tried(question: Question, pins: Pins) -> str:
    """The strongest savings that the search had and that did not suffice."""
    has, given = trainer_choices(question), pins.given()
    tried = []
    if "micro_batch_size" not in given:
        tried.append("micro_batch_size=1")
    if "recompute" not in given and "full" in has.recompute:
        tried.append("recompute=full")
    if "zero_stage" not in given:
        tried.append(f"zero_stage={max(has.zero_stages)}")
    if "sp" not in given and question.gpus > 1:
        tried.append(f"every legal sp up to {question.gpus}")
    return ", ".join(tried)
