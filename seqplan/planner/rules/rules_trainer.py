"""Rules about options: which go together, which the device has, and which the chosen trainer can run."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

import numpy as np

from seqplan.planner.choosing.layout_table import ATTENTIONS, KERNELS, RECOMPUTES, Bools, Ints, LayoutTable
from seqplan.planner.layout import Layout
from seqplan.planner.question import Question
from seqplan.planner.reading.integers import divisors, listed
from seqplan.planner.rules.model_features import missing_features
from seqplan.planner.rules.rule import Rule
from seqplan.planner.virtual_stages import uneven_chunks


def _attention_broken(question: Question, table: LayoutTable) -> Bools:
    plain_over_sp = table.is_attention("none") & (table.sp > 1)
    if question.train.attention_dropout == 0:
        return plain_over_sp
    if "rsa" in question.implementation.capabilities.attention:
        return plain_over_sp | ~table.is_attention("rsa")
    return plain_over_sp | table.is_attention("ring")


def _attention(question: Question, layout: Layout) -> str:
    if layout.attention == "none" and layout.sp > 1:
        return f"attention=none needs sp=1, not sp={layout.sp}; set attention ring or rsa, or sp=1."
    dropout = question.train.attention_dropout
    return (
        f"attention={layout.attention} never has whole rows of probabilities to drop, and attention_dropout="
        f"{dropout:g}; set attention=rsa, or attention_dropout=0."
    )


def _tp_sequence_parallel_broken(question: Question, table: LayoutTable) -> Bools:
    wrong: Bools = (table.tp_sequence_parallel > 0) & (table.tp == 1)
    return wrong


def _tp_sequence_parallel(question: Question, layout: Layout) -> str:
    return "tp_sequence_parallel=true needs tp of at least 2, not tp=1; set it to false or raise tp."


def _zero_shard_size_broken(question: Question, table: LayoutTable) -> Bools:
    wrong: Bools = (table.dp * table.sp) % table.zero_shard_size != 0
    return wrong


def _zero_shard_size(question: Question, layout: Layout) -> str:
    ranks = layout.dp * layout.sp
    size = layout.zero_shard_size
    return f"zero_shard_size={size} does not divide dp x sp={ranks}; use {listed(divisors(ranks))}."


def _device_kernels(question: Question, precision: str) -> tuple[str, ...]:
    return question.cluster.device.kernels(precision, question.model.head_dim)


def _precision_on_device_broken(question: Question, table: LayoutTable) -> bool:
    device, asked = question.cluster.device, question.train.precision
    return not device.kernels(table.precision, 1) or asked not in ("auto", table.precision)


def _precision_on_device(question: Question, layout: Layout) -> str:
    asked, device = question.train.precision, question.cluster.device
    if asked not in ("auto", layout.precision):
        return f"precision={layout.precision} in the layout, {asked} in the training; give one of them only."
    names = [name for name in device.peak_flops_per_s if question.cluster.device.kernels(name, 1)]
    return f"{device.name} has no precision={layout.precision} for training; use {listed(names)}."


def _kernel_on_device_broken(question: Question, table: LayoutTable) -> Bools:
    kernels = _device_kernels(question, table.precision)
    return ~_one_of(table.kernel, KERNELS, (*kernels, "math"))  # plain matmuls run anywhere


def _kernel_on_device(question: Question, layout: Layout) -> str:
    has = dict.fromkeys((*_device_kernels(question, layout.precision), "math"))
    device = question.cluster.device.name
    what = f"{layout.precision} with head_dim={question.model.head_dim}"
    return f"{device} has no kernel={layout.kernel} for {what}; use {listed(has)}."


def _hybrid_broken(question: Question, table: LayoutTable) -> Bools | bool:
    if question.implementation.capabilities.hybrid_sharding:
        return False
    wrong: Bools = (table.zero_stage > 0) & (table.zero_shard_size != table.dp * table.sp)
    return wrong


def _hybrid(question: Question, layout: Layout) -> str:
    name, size, ranks = question.implementation.name, layout.zero_shard_size, layout.dp * layout.sp
    return f"zero_shard_size={size}: {name} shards over all of dp x sp; set {ranks} or leave it out."


def _uneven_broken(question: Question, table: LayoutTable) -> bool:
    if question.implementation.capabilities.uneven_stages:
        return False
    chunks = table.num_virtual_stages if table.schedule == "interleaved" else 1
    return uneven_chunks(table.stage_layers, chunks)


def _uneven(question: Question, layout: Layout) -> str:
    even = [pp for pp in divisors(question.model.num_layers) if question.gpus % pp == 0]
    shown = "+".join(map(str, layout.stage_layers))
    name = question.implementation.name
    if len(set(layout.stage_layers)) == 1:
        layers, chunks = layout.stage_layers[0], layout.num_virtual_stages
        good = listed(divisors(layers)[1:]) or "schedule=1f1b"
        return (
            f"num_virtual_stages={chunks} does not divide the {layers} layers of a stage, and {name} needs "
            f"chunks of equal length; use {good}."
        )
    return f"stage_layers={shown}: {name} needs stages of equal length; use pp {listed(even)}."


def _one_of(column: Ints, names: Sequence[object], allowed: Container[object]) -> Bools:
    """Whether each code of the column stands for an allowed name."""
    ok: Bools = np.array([name in allowed for name in names])[column]
    return ok


def _partial_broken(question: Question, table: LayoutTable) -> Bools | bool:
    if question.implementation.capabilities.partial_recompute:
        return False
    wrong: Bools = ~table.is_recompute("none") & (table.recompute_layers < max(table.stage_layers, default=0))
    return wrong


def _partial(question: Question, layout: Layout) -> str:
    count, longest = layout.recompute_layers, max(layout.stage_layers, default=0)
    return (
        f"recompute_layers={count}: {question.implementation.name} recomputes all layers of a stage or none; "
        f"use {longest} or leave it out."
    )


def _over_tp_broken(question: Question, table: LayoutTable) -> Bools:
    has = question.implementation.capabilities.tp_sequence_parallel
    wrong: Bools = (table.tp > 1) & ~_one_of(table.tp_sequence_parallel, (False, True), has)
    return wrong


def _unsupported(question: Question, field: str, value: object, has: Iterable[object]) -> str:
    shown = str(value).lower() if isinstance(value, bool) else value
    good = [str(item).lower() if isinstance(item, bool) else item for item in has]
    return f"{question.implementation.name} has no {field}={shown}; use {listed(good)}."


def _not_estimated(question: Question, field: str, value: object, has: Iterable[object]) -> str:
    """An option that decides which tensors there are: the inventory has rows for the trainer's own only."""
    text = _unsupported(question, field, value, has)
    return f"{text} What it would keep is not known, so nothing is estimated."


def _models_broken(question: Question, table: LayoutTable) -> bool:
    supported = question.implementation.capabilities.model_features
    return bool(missing_features(question.model, question.train.seq_len, supported))


def _models(question: Question, layout: Layout) -> str:
    supported = question.implementation.capabilities.model_features
    missing = missing_features(question.model, question.train.seq_len, supported)
    return (
        f"{question.implementation.name} cannot train {question.model.name}: it does not have "
        f"{listed(missing, 'and')}; the layout is costed all the same."
    )


def _chunked_head(question: Question, layout: Layout) -> str:
    return (
        f"{question.implementation.name} makes the logits whole, which --chunked-head assumes away; leave it "
        "out. It is costed all the same."
    )


RULES: tuple[Rule, ...] = (
    Rule("attention", "layout", _attention_broken, _attention),
    Rule("tp_sequence_parallel", "layout", _tp_sequence_parallel_broken, _tp_sequence_parallel),
    Rule("zero_shard_size", "layout", _zero_shard_size_broken, _zero_shard_size),
    Rule("precision", "layout", _precision_on_device_broken, _precision_on_device),
    Rule("kernel", "layout", _kernel_on_device_broken, _kernel_on_device),
    Rule("trainer_model", "trainer", _models_broken, _models),
    Rule(
        "trainer_attention",
        "inventory",
        lambda q, t: (
            ~_one_of(t.attention, ATTENTIONS, (*q.implementation.capabilities.attention, "none", "ulysses"))
        ),
        lambda q, x: _not_estimated(q, "attention", x.attention, q.implementation.capabilities.attention),
    ),
    Rule(
        "trainer_kernel",
        "inventory",
        lambda q, t: (
            ~_one_of(t.kernel, KERNELS, q.implementation.capabilities.kernels) & ~t.is_attention("rsa")
        ),
        lambda q, x: _not_estimated(q, "kernel", x.kernel, q.implementation.capabilities.kernels),
    ),
    Rule(
        "trainer_schedule",
        "trainer",
        lambda q, t: t.schedule not in (*q.implementation.capabilities.schedules, "none"),
        lambda q, x: _unsupported(q, "schedule", x.schedule, q.implementation.capabilities.schedules),
    ),
    Rule(
        "trainer_recompute",
        "trainer",
        lambda q, t: ~_one_of(t.recompute, RECOMPUTES, q.implementation.capabilities.recompute),
        lambda q, x: _unsupported(q, "recompute", x.recompute, q.implementation.capabilities.recompute),
    ),
    Rule("trainer_recompute_layers", "trainer", _partial_broken, _partial),
    Rule(
        "trainer_zero",
        "inventory",
        lambda q, t: ~_one_of(t.zero_stage, range(4), q.implementation.capabilities.zero_stages),
        lambda q, x: _not_estimated(q, "zero_stage", x.zero_stage, q.implementation.capabilities.zero_stages),
    ),
    Rule(
        "trainer_precision",
        "trainer",
        lambda q, t: t.precision not in q.implementation.capabilities.precisions,
        lambda q, x: _unsupported(q, "precision", x.precision, q.implementation.capabilities.precisions),
    ),
    Rule(
        "trainer_optimizer",
        "inventory",
        lambda q, t: q.train.optimizer not in q.implementation.capabilities.optimizers,
        lambda q, x: _not_estimated(
            q, "optimizer", q.train.optimizer, q.implementation.capabilities.optimizers
        ),
    ),
    Rule(
        "trainer_gradient_bytes",
        "inventory",
        lambda q, t: q.train.gradient_bytes not in q.implementation.capabilities.gradient_bytes,
        lambda q, x: _not_estimated(
            q, "gradient_bytes", q.train.gradient_bytes, q.implementation.capabilities.gradient_bytes
        ),
    ),
    Rule(
        "trainer_tp_sequence_parallel",
        "trainer",
        _over_tp_broken,
        lambda q, x: _unsupported(
            q,
            "tp_sequence_parallel",
            x.tp_sequence_parallel,
            q.implementation.capabilities.tp_sequence_parallel,
        ),
    ),
    Rule(
        "trainer_chunked_head",
        "trainer",
        lambda q, t: q.train.chunked_head and not q.implementation.capabilities.chunked_head,
        _chunked_head,
    ),
    Rule("trainer_hybrid_sharding", "trainer", _hybrid_broken, _hybrid),
    Rule("trainer_uneven_stages", "trainer", _uneven_broken, _uneven, about_stages=True),
)
