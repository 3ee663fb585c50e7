"""Rules about the pipeline and the batch: stages, layers, micro-batches, schedule, recompute, mesh order."""

from __future__ import annotations

from seqplan.planner.choosing.layout_table import Bools, LayoutTable
from seqplan.planner.layout import AXES, Layout, spread_layers
from seqplan.planner.question import Question
from seqplan.planner.reading.integers import divisors, listed
from seqplan.planner.rules.rule import Rule
from seqplan.planner.virtual_stages import chunk_counts, every_chunk_works


def _pp_broken(question: Question, table: LayoutTable) -> bool:
    return table.pp > question.model.num_layers


def _pp(question: Question, layout: Layout) -> str:
    layers = question.model.num_layers
    useful = [pp for pp in divisors(question.gpus) if pp <= layers]
    stages = f"pp={layout.pp} makes {layout.pp} stages for {layers} layers"
    return f"{stages}; a stage needs at least one: use pp {listed(useful)}."


def _stages_broken(question: Question, table: LayoutTable) -> bool:
    if table.pp > question.model.num_layers:
        return False  # said by the rule above
    stages = table.stage_layers
    # A trainer that balances matmuls may leave its last stages with the head alone.
    least = 0 if question.implementation.capabilities.stage_balance == "matmuls" else 1
    return (
        len(stages) != table.pp or sum(stages) != question.model.num_layers or min(stages, default=0) < least
    )


def _stages(question: Question, layout: Layout) -> str:
    layers, stages = question.model.num_layers, layout.stage_layers
    shown = "+".join(map(str, stages))
    good = "+".join(map(str, spread_layers(layers, layout.pp)))
    return (
        f"stage_layers={shown} ({len(stages)} stages, {sum(stages)} layers) must be pp={layout.pp} stages of "
        f"at least one layer that hold each of the {layers} layers once; for example {good}."
    )


def _schedule_broken(question: Question, table: LayoutTable) -> bool:
    virtual = table.num_virtual_stages
    if (table.schedule == "none") != (table.pp == 1):
        return True
    if table.schedule == "interleaved":
        return virtual < 2 or not every_chunk_works(table.stage_layers, virtual)
    return virtual != 1


def _schedule(question: Question, layout: Layout) -> str:
    virtual = layout.num_virtual_stages
    if layout.pp == 1 and layout.schedule != "none":
        return f"schedule={layout.schedule} needs pp of at least 2, not pp=1; set schedule=none or raise pp."
    if layout.pp > 1 and layout.schedule == "none":
        names = [name for name in question.implementation.capabilities.schedules if name != "none"]
        return (
            f"pp={layout.pp} needs a pipeline schedule, not none; set schedule {listed(names or ['1f1b'])}."
        )
    if layout.schedule == "interleaved":
        each = (
            listed(layout.stage_layers, "and")
            if len(set(layout.stage_layers)) > 1
            else str(layout.stage_layers[0])
        )
        good = chunk_counts(layout.stage_layers)
        return (
            f"num_virtual_stages={virtual} with schedule=interleaved must be at least 2 and leave a layer "
            f"for every chunk of every stage ({each}), but for the first stage's first chunk (it has the "
            f"embedding) and the last stage's last one (it has the head); use {listed(good) or 'another pp'}."
        )
    wrong = f"num_virtual_stages={virtual} needs schedule=interleaved, not {layout.schedule}"
    return f"{wrong}; set num_virtual_stages=1."


def _batch_broken(question: Question, table: LayoutTable) -> Bools:
    wrong: Bools = question.train.global_batch_size % (table.dp * table.micro_batch_size) != 0
    return wrong


def _batch(question: Question, layout: Layout) -> str:
    batch, dp, micro = question.train.global_batch_size, layout.dp, layout.micro_batch_size
    if batch % dp == 0:
        return (
            f"global_batch_size={batch} over dp={dp} is {batch // dp} sequences, not a multiple of "
            f"micro_batch_size={micro}; use micro_batch_size {listed(divisors(batch // dp))}."
        )
    work = divisors(batch)
    here = [value for value in divisors(question.gpus) if batch % value == 0]
    step = dp * micro
    around = [value for value in (batch // step * step, (batch // step + 1) * step) if value]
    return (
        f"global_batch_size={batch} is not a multiple of dp={dp} (x micro_batch_size={micro}); the dp that "
        f"divide {batch} are {listed(work, 'and')}; on {question.gpus} GPUs use dp {listed(here)}, "
        f"or global_batch_size {listed(around)}."
    )


def _microbatches_broken(question: Question, table: LayoutTable) -> Bools | bool:
    least = question.implementation.capabilities.min_microbatches_per_stage * table.pp
    wrong: Bools = table.num_microbatches < least
    return wrong if table.pp > 1 else False


def _microbatches(question: Question, layout: Layout) -> str:
    trainer = question.implementation
    per_stage = trainer.capabilities.min_microbatches_per_stage
    batch, dp, micro, pp = question.train.global_batch_size, layout.dp, layout.micro_batch_size, layout.pp
    least = per_stage * pp
    count = max(batch // (dp * micro), 1)
    smaller = (
        [m for m in divisors(batch // dp) if batch // dp // m >= least]
        if batch % dp == 0 and batch >= dp
        else []
    )
    ways = [f"micro_batch_size={smaller[-1]} (gives {batch // dp // smaller[-1]})"] if smaller else []
    ways.append(f"global_batch_size={least * dp * micro} or more")
    fitting = [p for p in divisors(question.gpus) if p < pp and per_stage * p <= count]
    ways.extend([f"pp={fitting[-1]}"] if fitting else [])
    times = "" if per_stage == 1 else f"{per_stage} x "
    return (
        f"num_microbatches={count} (gradient accumulation: global_batch_size={batch} / (dp={dp} x "
        f"micro_batch_size={micro})) is less than {times}pp={pp}, which {trainer.name}'s pipeline needs; "
        f"set {listed(ways)}."
    )


def _groups_broken(question: Question, table: LayoutTable) -> Bools | bool:
    if table.schedule != "interleaved" or not question.implementation.capabilities.interleaves_whole_groups:
        return False
    wrong: Bools = table.num_microbatches % table.pp != 0
    return wrong


def _groups(question: Question, layout: Layout) -> str:
    batch, dp, micro, pp = question.train.global_batch_size, layout.dp, layout.micro_batch_size, layout.pp
    count = batch // (dp * micro)
    ways = ["schedule=1f1b"]
    fitting = [p for p in divisors(question.gpus) if 1 < p < pp and count % p == 0]
    ways += [f"pp={fitting[-1]}"] if fitting else []
    around = [value for value in (count // pp * pp, (count // pp + 1) * pp) if value]
    ways += [f"global_batch_size={value * dp * micro}" for value in around]
    return (
        f"num_microbatches={count} (global_batch_size={batch} / (dp={dp} x micro_batch_size={micro})) is no "
        f"multiple of pp={pp}, which {question.implementation.name}'s interleaved schedule needs: "
        f"micro-batches pass the chunks in groups of pp; set {listed(ways)}."
    )


def _recompute_layers_broken(question: Question, table: LayoutTable) -> Bools:
    wrong: Bools = table.recompute_layers > max(table.stage_layers, default=0)
    return wrong


def _recompute_layers(question: Question, layout: Layout) -> str:
    longest = max(layout.stage_layers, default=0)
    wrong = (
        f"recompute_layers={layout.recompute_layers} is more than the {longest} layers of the longest stage"
    )
    return f"{wrong}; use 0 to {longest}."


def _mesh_order_broken(question: Question, table: LayoutTable) -> bool:
    return sorted(table.mesh_order) != sorted(AXES)


def _mesh_order(question: Question, layout: Layout) -> str:
    order = ",".join(layout.mesh_order)
    return f"mesh_order={order} must name each of {listed(AXES, 'and')} once, outermost first."


RULES: tuple[Rule, ...] = (
    Rule("pp_layers", "layout", _pp_broken, _pp),
    Rule("stage_layers", "layout", _stages_broken, _stages, about_stages=True),
    Rule("schedule", "layout", _schedule_broken, _schedule, about_stages=True),
    Rule("batch", "layout", _batch_broken, _batch),
    Rule("microbatches", "layout", _microbatches_broken, _microbatches),
    Rule("interleaved_groups", "trainer", _groups_broken, _groups),
    Rule("recompute_layers", "layout", _recompute_layers_broken, _recompute_layers),
    Rule("mesh_order", "layout", _mesh_order_broken, _mesh_order),
)
