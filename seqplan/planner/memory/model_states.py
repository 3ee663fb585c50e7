"""Parameters of every stage on its fullest rank: whole after tp, and their share under ZeRO.

tp divides a tensor by rows, columns or vocabulary rows, or not at all (norms); ZeRO divides what is left
along its first dimension, as torch's FSDP2 does, so the fullest rank holds the rows rounded up. Weights of
the embedding lie on the first stage, final norm and head on the last; a tied weight is one tensor on one
stage, and a copy on each end of a pipeline.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from seqplan.planner.activations import Floats
from seqplan.planner.choosing.layout_table import LayoutTable
from seqplan.planner.memory.symbols import column
from seqplan.planner.model_spec import ParameterTensor
from seqplan.planner.question import Question

STAGE_SYMBOLS = frozenset(
    ("P", "Pn", "Pf", "Pl", "Pln", "Pe", "Ph", "Pw", "Pb", "Pa", "Pc", "layers", "first", "last")
)
"""What differs from stage to stage; every other symbol is the same on all of them."""


@dataclass(frozen=True)
class Share:
    """Parameters of one group of tensors on a rank: all after tp, and the fullest rank's share of them.

    `factored`: rows and columns of the matrices, what Adafactor keeps of a matrix.
    """

    whole: Floats
    shard: Floats
    factored: Floats

    def __add__(self, other: Share) -> Share:
        return Share(self.whole + other.whole, self.shard + other.shard, self.factored + other.factored)

    def times(self, count: int) -> Share:
        return Share(self.whole * count, self.shard * count, self.factored * count)


@dataclass(frozen=True)
class RankParameters:
    """Parameters by place. `layer` is of one layer; `head` counts final norm and head, tied copy included."""

    layer: Share
    embedding: Share
    head: Share
    largest_layer_weight: Floats
    one_layer_a_stage: bool
    """All layers of a stage use the same weights (ALBERT)."""

    def stage(self, table: LayoutTable, stage: int, layers: int | None = None) -> dict[str, Any]:
        """The symbols of one stage: P, Pn, Pl, Pln, Pe, Ph, Pw, layers, first, last."""
        layers = table.stage_layers[stage] if layers is None else layers
        first, last = stage == 0, stage == head_stage(table)
        distinct = min(layers, 1) if self.one_layer_a_stage else layers
        total = self.layer.times(distinct)
        nothing = np.zeros(len(table))
        ends = Share(nothing, nothing, nothing)
        if first:
            ends = ends + self.embedding
        if last:
            ends = ends + self.head
        total = total + ends
        return {
            "P": total.whole,
            "Pn": total.shard,
            "Pf": total.factored,
            "Pl": self.layer.whole,
            "Pln": self.layer.shard,
            "Pe": ends.whole,
            "Ph": self.head.whole if last else nothing,
            "Pw": self.largest_layer_weight,
            "layers": layers,
            "first": first,
            "last": last,
        }


def head_stage(table: LayoutTable) -> int:
    """The stage with final norm and head: the last, but the first rank of a V-shaped schedule."""
    return 0 if table.schedule == "zbv" else table.pp - 1


def rank_parameters(question: Question, table: LayoutTable) -> RankParameters:
    """Parameters of one layer and of both ends on the fullest rank, for every row of the table."""
    for model, trainer, known in table.parameters:
        if model is question.model and trainer is question.implementation:
            return cast(RankParameters, known)
    found = _rank_parameters(question, table)
    table.parameters.append((question.model, question.implementation, found))
    return found


def _rank_parameters(question: Question, table: LayoutTable) -> RankParameters:
    model = question.model
    vocab_per_rank = column(
        question.implementation.capabilities.padded_vocab(model.vocab_size, table.tp) // table.tp
    )
    tensors = model.parameter_tensors()
    copied = table.pp > 1 and head_stage(table) != 0
    layer = [tensor for tensor in tensors if tensor.place == "layer"]
    head = [t for t in tensors if t.place in ("final", "head") and (t.tied_to is None or copied)]
    embedding = [t for t in tensors if t.place == "embedding" and t.tied_to is None]
    tp, ranks = column(table.tp), column(table.zero_shard_size)

    def share(group: list[ParameterTensor]) -> Share:
        whole, shard, factored = np.zeros(len(table)), np.zeros(len(table)), np.zeros(len(table))
        for (shape, split), count in Counter((t.shape, t.tp_split) for t in group).items():
            rows, columns = rows_and_columns(shape, split, tp, vocab_per_rank)
            whole = whole + count * rows * columns
            shard = shard + count * np.ceil(rows / ranks) * columns
            factored = factored + count * (rows + (columns if len(shape) > 1 else 0))
        return Share(whole, shard, factored)

    one_layer = share(layer)
    if question.implementation.capabilities.tp_copies_kv_heads:
        copies = _copied_kv_parameters(question, tp)
        one_layer = one_layer + Share(copies, copies / ranks, np.zeros(len(table)))
    largest = np.zeros(len(table))
    for tensor in layer:
        rows, columns = rows_and_columns(tensor.shape, tensor.tp_split, tp, vocab_per_rank)
        largest = np.maximum(largest, rows * columns)
    return RankParameters(one_layer, share(embedding), share(head), largest, model.shared_layers)


def rows_and_columns(
    shape: tuple[int, ...], split: str, tp: Floats, vocab_per_rank: Floats
) -> tuple[Any, Any]:
    """The first dimension on a rank, and the elements of one of its rows."""
    rows, columns = shape[0], math.prod(shape[1:])
    if split == "column":
        return np.ceil(rows / tp), columns
    if split == "row":
        return rows, np.ceil(columns / tp)
    if split == "vocab":
        return vocab_per_rank, columns
    return rows, columns


def _copied_kv_parameters(question: Question, tp: Floats) -> Floats:
    """What a rank holds of K and V beyond 1 / tp of them, where tp exceeds the kv heads."""
    model = question.model
    extra_heads = np.maximum(1.0 - model.num_kv_heads / tp, 0.0)
    rows = 2 * model.head_dim * extra_heads
    return np.asarray(rows * (model.hidden_size + (1 if model.qkv_bias else 0)))
