"""The inventory of one trainer added up for a LayoutTable: bundles of bytes by kind, per layer and per stage.

A bundle is what comes and goes together (the states, one layer's kept tensors, the working tensors of one
moment). Rows that do not depend on the stage are evaluated once for all stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from seqplan.planner.activations import (
    Floats,
    Part,
    RecomputeMode,
    TensorRow,
    add_by_kind,
    layer_bytes,
)
from seqplan.planner.choosing.layout_table import LayoutTable
from seqplan.planner.memory.bundle import EMPTY, Bundle
from seqplan.planner.memory.gradient_buckets import GradientBuckets
from seqplan.planner.memory.heads_exchange import with_heads_exchange
from seqplan.planner.memory.model_states import rank_parameters
from seqplan.planner.memory.symbols import layout_values
from seqplan.planner.memory.working_rows import WorkingRows
from seqplan.planner.question import Question

LOGITS_CHUNK_BYTES = 2**26
"""Logits of a chunk and what their loss makes of them: assumed, 16 Mi elements in fp32."""


@dataclass(frozen=True, eq=False)
class StageBundles:
    """All that one stage's fullest rank may hold."""

    has_embedding: bool
    has_head: bool
    num_layers: int
    states: Bundle
    """Weights, optimizer states and buffers: all but the gradients."""
    gradients: Bundle
    head_gradients: Bundle
    """Gradients of final norm and head: they exist when the layers' backward begins."""
    layer_gradients: Bundle
    """Stored gradients of one layer."""
    early_gradients: Bundle
    """Those of a layer that exist before its attention's backward, where each is stored as it comes."""
    late_gradients: Bundle
    """Gradients of the embedding, and of all outside the layers where they are reduced together: the last to
    exist in a backward."""
    late_layer_gradients: Bundle
    """Stored gradients of one layer, if the inventory follows its backward: none of them before it."""
    layer: Bundle
    """One layer of one micro-batch without recompute."""
    layer_mlp: Bundle
    """Its MLP half."""
    layers: Bundle
    """All layers of one micro-batch, as the recompute mode keeps them."""
    recomputed_extra: Bundle
    """What the recomputation of one layer brings back."""
    last_recomputed: Any
    """1 where the last layer is recomputed."""
    inputs: Bundle
    """What a micro-batch keeps besides its layers: token ids, and the embedding's on the first stage."""
    micro_batch: Bundle
    """Of these, what does not go before the end of its backward."""
    head: Bundle
    working: dict[str, Bundle]
    later_working: dict[str, Bundle]
    """The same in the backward after a step's first one."""
    head_waits: bool = True
    """Whether a waiting micro-batch has been through the head."""

    @cached_property
    def kept(self) -> Bundle:
        """A waiting micro-batch: layers and ends."""
        kept = self.layers.plus(self.inputs)
        return kept.plus(self.head) if self.head_waits else kept


class Inventory:
    """Bundles of every stage, for all rows of one table."""

    def __init__(self, question: Question, table: LayoutTable) -> None:
        self.trainer = question.implementation
        if np.any(table.ulysses_degree > 1):
            self.trainer = with_heads_exchange(self.trainer)
        self.chunked_head = question.train.chunked_head
        self.table = table
        self.values = layout_values(question, table)
        self.parameters = rank_parameters(question, table)
        self._full = table.is_recompute("full")
        self._selective = table.is_recompute("selective")
        in_buckets = any("Pb" in row.names for row in self.trainer.working)
        self._buckets = GradientBuckets(question, table) if in_buckets else None
        self._parts: dict[tuple[Part, ...], Bundle] = {}
        self._working = WorkingRows(self.trainer.working, self.values, self._of_parts, self._in_chunks)

    def first_backwards(self, in_flight: Floats, layers: int) -> Any:
        """1 where a stage's moments are those of a step's first backward, which finds no gradients.

        There all micro-batches are in flight; or of two the other one's backward is the last, which drops
        weights; or the first alone gathers ahead what the first of two layers does not need (FSDP2). Of more
        there is one between them that finds gradients and is as full.
        """
        if self.trainer.gradients_between_steps:
            return 0.0
        count, zero = self.values["m"], self.values["zero"]
        first = (in_flight >= count) | ((count == 2) & (zero == 2))
        if layers == 2 and self._follows_backwards:
            first = first | ((zero == 3) & (in_flight > 1))
        return first.astype(np.float64)

    def stage(
        self, stage: int, has_head: bool, layers: int | None = None, first_backward: Any = 0.0
    ) -> StageBundles:
        """Everything that the fullest rank of `stage` may hold, with `layers` layers if not the table's."""
        own = self.parameters.stage(self.table, stage, layers)
        if self._buckets is not None:
            own |= self._buckets.stage(own["layers"], own["first"], own["last"])
        count = self.values["m"]
        values = {**self.values, **own, "first_backward": first_backward, "last_backward": count == 1}
        later = {**values, "first_backward": 0.0, "last_backward": count == 2}
        layers = own["layers"]
        recomputed = np.minimum(self.table.recompute_layers, layers)
        states, gradients = _split_gradients(add_by_kind(self.trainer.states, values))
        head_gradients = self._gradients_of(own["Ph"], values)
        sharded = values["zero"] >= 2
        early = own["Ph"]
        if values["tied"] and self.table.pp == 1 and not self._follows_backwards:
            # The head's part of a table that both ends share; where backwards are followed it is a row.
            early = early + values["V"] * values["E"]
        late = np.where(sharded, own["Pe"], own["Pe"] - early)
        micro_batch = Bundle(add_by_kind(self.trainer.micro_batch, values))
        working = self._working.of(values)
        return StageBundles(
            has_embedding=bool(own["first"]),
            has_head=has_head,
            num_layers=layers,
            states=states,
            gradients=gradients,
            head_gradients=head_gradients.times(~sharded) if has_head else EMPTY,
            layer_gradients=self._gradients_of(own["Pl"], values),
            early_gradients=self._early_gradients(own["Pl"], values),
            late_gradients=self._gradients_of(late, values) if own["first"] or has_head else EMPTY,
            late_layer_gradients=self._gradients_of(own["Pl"], values) if self._follows_backwards else EMPTY,
            layer=self._layer,
            layer_mlp=self._of_parts("mlp", "mlp_inner"),
            layers=self._layer.times(layers).plus(self._recompute_extra, -1.0 * recomputed),
            recomputed_extra=self._recompute_extra,
            last_recomputed=((recomputed >= layers) & (recomputed > 0)).astype(np.float64),
            micro_batch=micro_batch,
            inputs=micro_batch.plus(self._embedding) if own["first"] else micro_batch,
            head=self._head if has_head else EMPTY,
            working=working,
            later_working=self._working.later(working, later) if np.any(first_backward) else {},
            # Interleaved: the head's backward follows its forward, while the other chunks wait.
            head_waits=self.table.schedule != "interleaved",
        )

    def _gradients_of(self, parameters: Any, values: dict[str, Any]) -> Bundle:
        """Stored gradients of some of the stage's parameters."""
        own = {**values, "P": parameters, "Pn": parameters / self.values["N"], "Pe": parameters}
        return _split_gradients(add_by_kind(self._gradient_rows, own))[1]

    def _early_gradients(self, layer: Any, values: dict[str, Any]) -> Bundle:
        """All of a layer but those of q, k and v; if the inventory follows a backward that far."""
        if not self._follows_backwards:
            return EMPTY
        later = values["h"] * (values["a"] + 2 * values["k"]) * values["d"]
        return self._gradients_of(layer - later, values).times(values["zero"] < 2)

    @cached_property
    def _follows_backwards(self) -> bool:
        return any("qkv_backward" in row.at for row in self.trainer.working)

    @cached_property
    def _gradient_rows(self) -> list[TensorRow]:
        return [row for row in self.trainer.states if row.kind == "gradients"]

    @cached_property
    def _layer(self) -> Bundle:
        return Bundle(layer_bytes(self.trainer.layer, self.values, "none"))

    def _of_parts(self, *parts: Part) -> Bundle:
        """What a layer keeps in some of its parts."""
        if parts not in self._parts:
            self._parts[parts] = Bundle(layer_bytes(self.trainer.layer, self.values, "none", parts))
        return self._parts[parts]

    @cached_property
    def _recompute_extra(self) -> Bundle:
        """What a layer without recompute keeps more than under the row's own mode."""
        extra = EMPTY
        modes: tuple[tuple[RecomputeMode, Any], ...] = (("selective", self._selective), ("full", self._full))
        for mode, chosen in modes:
            if chosen.any():
                kept = Bundle(layer_bytes(self.trainer.layer, self.values, mode))
                extra = extra.plus(self._layer.plus(kept, -1.0), chosen)
        return extra

    @cached_property
    def _embedding(self) -> Bundle:
        return Bundle(add_by_kind(self.trainer.embedding, self.values))

    @cached_property
    def _head(self) -> Bundle:
        return Bundle(self._in_chunks(add_by_kind(self.trainer.head, self.values)))

    def _in_chunks(self, by_kind: dict[str, Any]) -> dict[str, Any]:
        """With a chunked head no more of the logits than a chunk, at any moment."""
        if not self.chunked_head or "logits" not in by_kind:
            return by_kind
        return {**by_kind, "logits": np.minimum(by_kind["logits"], LOGITS_CHUNK_BYTES)}


def _split_gradients(by_kind: dict[str, Any]) -> tuple[Bundle, Bundle]:
    """States without gradients, and the gradients."""
    rest = {kind: value for kind, value in by_kind.items() if kind != "gradients"}
    found = {kind: value for kind, value in by_kind.items() if kind == "gradients"}
    return Bundle(rest), Bundle(found)
