"""The inventory: which tensors a trainer keeps in memory, as data, and their sizes by kind.

A row of an inventory names one tensor, its elements and bytes as formulas over the symbols below, when it
exists and what it counts as. One file a trainer (profiles/implementations); no coefficient stands in code,
so that a measured difference is cured by a row that says what it is. Formulas run over columns of layouts
(expression.py), one row of an inventory for all candidates at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from seqplan.planner.memory.expression import Expression, compile_expression
from seqplan.planner.spec import Spec

Floats = NDArray[np.float64]
Values = Mapping[str, Any]

SYMBOLS: dict[str, str] = {
    # sizes of the batch
    "B": "sequences of a micro-batch",
    "L": "tokens of a sequence, over all sp ranks",
    "S": "tokens of a sequence on this rank: L / sp",
    "T": "tokens of a micro-batch on this rank: B * S",
    "Tr": "tokens of the residual stream on this rank: T / tp with tp_sequence_parallel, else T",
    "m": "micro-batches of a step",
    # sizes of the model, on this rank where tp divides them
    "h": "hidden size, undivided",
    "E": "width of the token embedding, undivided",
    "f": "MLP width / tp",
    "a": "attention heads / tp",
    "k": "kv heads / tp, at least U: those that are copied for the ranks that split them too",
    "d": "size of a head",
    "V": "vocabulary rows / tp, padding included",
    "e": "bytes of the compute dtype",
    "ge": "bytes of an accumulated gradient: 2 or 4",
    "oe": "bytes of the optimizer's moments for one parameter: 8 for AdamW in fp32",
    # degrees
    "dp": "data-parallel degree",
    "tp": "tensor-parallel degree",
    "sp": "sequence-parallel degree",
    "pp": "pipeline stages",
    "zero": "zero_stage",
    "N": "zero_shard_size: ranks that share the states",
    "U": "ulysses_degree: neighbours in sp that split the heads",
    "R": "ranks of a ring: sp / U",
    "Xd": "elements of the largest tile of rsa's kept scores that is worked on at once",
    "Xs": "elements of the largest tile of its softmax",
    "G": "groups of heads for which the ring turns one after the other (1 without a ring)",
    # what the layout, the device and the model choose (each 0 or 1)
    "tp_sequence_parallel": "the residual stream is split over tp",
    "ring": "ring attention with sp > 1",
    "rsa": "the paper's ring self-attention",
    "copied": "rsa copies q into rows: several kv heads, and several sequences or query heads of each",
    "zigzag": "causal rsa with sp > 1, which meets half a block's keys at once",
    "plain": "attention on one rank: neither ring nor rsa",
    "flash": "torch's flash kernel",
    "efficient": "torch's memory-efficient kernel",
    "math": "attention by plain matmuls, also what rsa is",
    "cpu": "the device is a CPU",
    "cuda": "the device is a GPU",
    "fp32": "compute dtype float32",
    "recompute": "recompute full, of the first layers at least",
    "causal": "decoder",
    "gated": "MLP with a gate (swiglu, geglu)",
    "relu": "activation relu, whose result is all that it keeps",
    "rmsnorm": "RMSNorm; else LayerNorm",
    "pre_norm": "norms before each block (pre and sandwich)",
    "post_norm": "norms after the residual sum",
    "output_norm": "norms on a block's output (output and sandwich)",
    "parallel_block": "attention and MLP read the same input",
    "qk_norm": "norms on q and k",
    "rope": "rotary positions",
    "learned": "learned positions",
    "embedding_norm": "a norm after the embeddings",
    "final_norm": "a norm after the last layer",
    "mlm": "masked-token head with its transform",
    "lm": "language-model head",
    "tied": "head and embedding share their weight",
    "adafactor": "optimizer Adafactor, whose moments are sums over rows and columns",
    "hidden_dropout": "hidden dropout > 0",
    "attention_dropout": "attention dropout > 0",
    # of one stage (states and buffers only)
    "P": "parameters of this rank's stage",
    "Pn": "the fullest rank's shard of P over N ranks, rows rounded up",
    "Pf": "rows and columns of P's matrices, and elements of its vectors",
    "Pl": "parameters of one layer on this rank",
    "Pln": "the fullest rank's shard of Pl",
    "Pe": "parameters of this stage outside the layers: embedding, final norm, head",
    "Ph": "parameters of this stage's final norm and head",
    "Pw": "elements of the largest single weight of a layer on this rank",
    "Pb": "elements of the larger of the last two buckets of gradients that are summed together",
    "Pa": "of the one that is under way in the first layer's attention backward, the step's last; or 0",
    "Pc": "of the one that is under way in the embedding's last backward; or 0",
    "layers": "layers of this stage",
    "first": "this stage is the first",
    "last": "this stage is the last",
    # of one micro-batch (working tensors only)
    "first_backward": "its backward is the first of the step",
    "last_backward": "its backward is the last of the step",
}
"""Every name that a formula of an inventory may use. Choices are booleans, usable in `when` and as 0 or 1."""

NAMES = frozenset(SYMBOLS)

Kind = Literal[
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "attention",
    "logits",
    "ring_buffers",
    "comm_buffers",
    "transient",
]
RecomputeMode = Literal["none", "selective", "full"]
Part = Literal["attention", "attention_inner", "mlp", "mlp_inner"]
Moment = Literal[
    "attention_forward",
    "values_forward",
    "mlp_forward",
    "loss_forward",
    "loss_backward",
    "head_backward",
    "mlp_backward",
    "last_mlp_backward",
    "up_backward",
    "attention_backward",
    "qkv_backward",
    "embedding_backward",
    "recomputation",
    "end",
    "reduction",
    "layer_reduction",
    "last_layer_reduction",
    "root_reduction",
    "summing",
    "summed",
    "embedding_summed",
    "gather",
    "forward_gather",
    "gradient_sum",
    "optimizer",
]
"""When a working tensor is alive. values_forward: in rsa's second turn of the ring; last_mlp_backward: with
mlp_backward, in the last layer alone; up_backward, qkv_backward: of the linears that read the input of MLP
and attention, when all that the part's middle kept has gone; recomputation: while a backward recomputes a
layer; end: when the backward has come to the first layer; reduction: while gradients of the layer before are
being reduced; layer_reduction: of the first layer, at the end of a backward; last_layer_reduction: with
layer_reduction, of the last layer, at the begin of a backward; root_reduction: after it, of what is outside
the layers; summing: of some layers, while the others' backward runs; summed, embedding_summed: before the
first layer's attention; gather: of the weights outside the layers, before a backward; forward_gather: of the
first layer's, before a forward; gradient_sum: after the last backward."""


class TensorRow(Spec):
    """One tensor of an inventory: `elements` x `bytes`, where `when` holds."""

    name: str
    elements: str = Field(description="formula over SYMBOLS")
    bytes: str | int = Field(description="bytes of an element: a number or a formula such as e")
    kind: Kind
    when: str | None = Field(default=None, description="formula over SYMBOLS; None: always")
    note: str = Field(default="", description="why it is kept, or the source of its size")

    @field_validator("elements", "when")
    @classmethod
    def _formula_reads(cls, text: str | None) -> str | None:
        if text is not None:
            compile_expression(text, NAMES)
        return text

    @field_validator("bytes")
    @classmethod
    def _bytes_reads(cls, value: str | int) -> str | int:
        compile_expression(str(value), NAMES)
        return value

    @cached_property
    def _size(self) -> Expression:
        return compile_expression(f"({self.elements}) * ({self.bytes})", NAMES)

    @cached_property
    def _condition(self) -> Expression | None:
        return None if self.when is None else compile_expression(self.when, NAMES)

    @cached_property
    def names(self) -> frozenset[str]:
        """The symbols that its size depends on."""
        return self._size.names | (self._condition.names if self._condition is not None else frozenset())

    def size_bytes(self, values: Values) -> Any:
        """Bytes of this tensor: a number or a column, as `values` holds them; 0 where `when` fails."""
        if self._condition is None:
            return self._size.evaluate(values)
        holds = self._condition.evaluate(values)
        if np.ndim(holds) == 0:
            return self._size.evaluate(values) if holds else 0.0
        return np.where(holds, self._size.evaluate(values), 0.0)


class LayerRow(TensorRow):
    """A tensor that one layer keeps for the backward of one micro-batch."""

    kept_with: tuple[RecomputeMode, ...] = Field(
        default=("none", "selective"), description="recompute modes under which it stays"
    )
    part: Part = Field(
        default="attention",
        description="mlp: freed before attention's backward; .._inner: before that of the part's input",
    )


class WorkingRow(TensorRow):
    """A tensor that exists at some moments only, once a rank."""

    at: tuple[Moment, ...]


def add_by_kind(rows: Iterable[TensorRow], values: Values) -> dict[str, Any]:
    """Sum of the rows' bytes by kind; kinds that no row has are left out."""
    return sum_by_kind((row.kind, row.size_bytes(values)) for row in rows)


def sum_by_kind(sizes: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The same of sizes that are known."""
    totals: dict[str, Any] = {}
    for kind, size in sizes:
        if kind in totals:
            totals[kind] = totals[kind] + size
        elif np.ndim(size) or size:
            totals[kind] = size
    return totals


def total_bytes(by_kind: Mapping[str, Any]) -> Any:
    """All kinds together; 0.0 of none."""
    total: Any = 0.0
    for size in by_kind.values():
        total = total + size
    return total


def layer_bytes(
    rows: Iterable[LayerRow], values: Values, mode: RecomputeMode, parts: Collection[Part] = get_args(Part)
) -> dict[str, Any]:
    """What one layer keeps of one micro-batch under a recompute mode, by kind; or some parts of it."""
    kept = [row for row in rows if mode in row.kept_with and row.part in parts]
    return add_by_kind(cast("list[TensorRow]", kept), values)
