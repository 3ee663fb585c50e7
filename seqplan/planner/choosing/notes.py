"""What a user should know about a plan that is allowed all the same: padding, slow links, assumptions."""

from __future__ import annotations

import math

from seqplan.planner.layout import DEFAULT_MESH_ORDER, Layout
from seqplan.planner.question import Question

LONGEST_USUAL_RING = 8
"""Ranks up to which rings are usual, and their sums of rounded blocks close to plain attention's."""


def ranks_of_group(question: Question, layout: Layout, axis: str) -> list[int]:
    """The ranks of the first group of an axis: neighbours are the product of the inner degrees apart."""
    order, degrees = layout.mesh_order, layout.degrees
    stride = math.prod(degrees[name] for name in order[order.index(axis) + 1 :])
    return [i * stride for i in range(degrees[axis])]


def axes_over_nodes(question: Question, layout: Layout) -> tuple[str, ...]:
    """The axes with a group that does not stay inside one node; ranks fill the nodes in order."""
    per_node, crossing = question.cluster.gpus_per_node, []
    for axis, degree in layout.degrees.items():
        if axis not in layout.mesh_order or degree == 1:
            continue
        group = ranks_of_group(question, layout, axis)
        block = group[1] * degree
        if layout.world_size > per_node and (block > per_node or per_node % block):
            crossing.append(axis)
    return tuple(crossing)


def vocab_padding(question: Question, tp: int) -> str:
    """How many rows the vocabulary gets so that tp ranks hold equal shares; also where it gets none."""
    model, capabilities = question.model, question.implementation.capabilities
    rows = int(capabilities.padded_vocab(model.vocab_size, tp))
    pad = rows - model.vocab_size
    unit = capabilities.vocab_multiple
    if pad == 0:
        return f"vocab_size={model.vocab_size} needs no padding with tp={tp}."
    tables = 1 if model.tied_embeddings or model.head not in ("lm", "mlm") else 2
    # Where the ranks' shares would be unequal, padding is no choice but what makes the tp legal.
    odd = model.vocab_size % tp
    why = f" Without it tp={tp}, which does not divide {model.vocab_size}, would be refused." if odd else ""
    return (
        f"vocab_size={model.vocab_size} is padded to {rows}, a multiple of {unit} x tp={tp}: {pad} rows of "
        f"{model.embedding_size} in {'one table' if tables == 1 else 'each of two tables'}, "
        f"{pad * model.embedding_size * tables:,} weights that train nothing (seqplan's loss leaves them "
        f"out).{why}"
    )


def position_warning(question: Question) -> str | None:
    """A sequence beyond the positions that the model was made for."""
    model, seq_len = question.model, question.train.seq_len
    limit = model.max_position_embeddings
    if limit is None or seq_len <= limit:
        return None
    if model.position == "learned":
        return (
            f"seq_len={seq_len} is beyond the {limit} learned positions of {model.name}: it can be planned, "
            f"but not run as it is; use at most {limit}."
        )
    return (
        f"seq_len={seq_len} is beyond max_position_embeddings={limit} of {model.name}, for which it was made."
    )


def precision_warning(question: Question) -> str | None:
    """A dtype that the device computes faster in and the trainer lacks, where nobody asked for one."""
    if question.train.precision != "auto":
        return None
    device, trainer = question.cluster.device, question.implementation
    peaks: dict[str, float] = {dtype: float(rate) for dtype, rate in device.peak_flops_per_s.items()}
    used = peaks.get(question.precision, 0.0)
    for name in ("bf16", "fp16"):
        peak = peaks.get(name, 0.0)
        if name not in trainer.capabilities.precisions and device.kernels(name, 1) and peak > used > 0:
            return (
                f"{device.name} computes {peak / used:.1f}x faster in {name} than in {question.precision}, "
                f"but {trainer.name} does not train in {name}; --precision {name} shows what it would bring."
            )
    return None


def layout_warnings(question: Question, layout: Layout) -> tuple[str, ...]:
    """Everything to know about one layout that no rule forbids."""
    found = [text for text in (position_warning(question), precision_warning(question)) if text]
    capabilities, tp = question.implementation.capabilities, layout.tp
    if (
        capabilities.vocab_multiple
        and int(capabilities.padded_vocab(question.model.vocab_size, tp)) != question.model.vocab_size
    ):
        found.append(vocab_padding(question, tp))
    per_node = question.cluster.gpus_per_node
    crossing = axes_over_nodes(question, layout) if layout.world_size == question.gpus else ()
    node = f"spans nodes of {per_node} device{'s' * (per_node != 1)}"
    usual = layout.model_copy(update={"mesh_order": DEFAULT_MESH_ORDER})
    elsewhere = set(crossing) - set(axes_over_nodes(question, usual) if crossing else ())

    def cure(axis: str) -> str:
        order = ",".join(DEFAULT_MESH_ORDER)
        return f" In the order {order} it would stay inside a node." if axis in elsewhere else ""

    if "tp" in crossing:
        found.append(f"tp={tp} {node}: all-reduces of every layer cross the slower link.{cure('tp')}")
    if "sp" in crossing:
        text = f"sp={layout.sp} {node}: the ring's hops cross the slower link, which costs bandwidth"
        if layout.sp > LONGEST_USUAL_RING:
            text += "; and a long ring costs accuracy in trainers that sum blocks in 16 bits"
            text += " (seqplan sums in float32)"
        found.append(f"{text}.{cure('sp')}")
    return tuple(found)


def trained(question: Question) -> str:
    """What is trained how, and what no estimate counts."""
    train = question.train
    states = "16 bytes a parameter: fp32 weight, gradient and two Adam moments"
    if question.precision != "fp32":
        states = f"compute in {question.precision}, fp32 weights, gradients and Adam moments"
    if train.optimizer != "adamw" or train.gradient_bytes != 4:
        states = f"gradients of {train.gradient_bytes} bytes; what else it keeps is the trainer's"
    name = "AdamW" if train.optimizer == "adamw" else train.optimizer
    return (
        f"{name} on every weight ({states}), all on the device: LoRA and offload are out of scope, and "
        "loading the weights at the start is not counted."
    )


def assumptions(question: Question) -> tuple[str, ...]:
    """What every estimate takes for granted."""
    length = f"every sequence has exactly {question.train.seq_len} tokens"
    return (f"{trained(question)[:-1]}; {length}, and no mask parts documents packed into it.",)
