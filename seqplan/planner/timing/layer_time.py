"""Seconds of one layer and of both ends of the model for one micro-batch on one rank, communication included.

Compute is a roofline for each matmul (efficiency.py: three of them for a weight, one forward and two
backward), plus the traffic of what lies between them, plus a launch for each kernel, and never less than
the trainer's host needs to issue it. tp's collectives are not hidden unless the trainer says so. A ring's
hop is hidden behind the block in hand (ring_time.py).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from seqplan.planner.activations import Floats
from seqplan.planner.choosing.layout_table import LayoutTable
from seqplan.planner.collectives import Network
from seqplan.planner.memory.model_states import RankParameters
from seqplan.planner.memory.symbols import layout_values
from seqplan.planner.question import Question
from seqplan.planner.timing.efficiency import DeviceClock
from seqplan.planner.timing.flops import (
    BACKWARD_PER_FORWARD,
    FLASH_BACKWARD_PER_FORWARD,
    mean_attention_pairs,
)
from seqplan.planner.timing.ring_time import ring_time

RESIDUAL_PASSES = 10
"""Reads and writes of the residual stream in a forward: two norms (2 each), two additions (3 each)."""

GATED_PASSES, PLAIN_PASSES = 5, 2
"""The same of the MLP's inner width: activation (2), and with a gate the product (3)."""

SCORE_PASSES = (5, 7)
"""The same of materialised scores, forward and backward: scores, mask, softmax and their gradients."""

LAYER_KERNELS = 10
"""Kernels of a layer's forward besides its matmuls: norms, additions, rotation, activation, attention."""

FLOAT8_CAST_BYTES = 4
"""float8 matmuls: each input is read in bf16 and written twice, as it is and transposed."""


@dataclass(frozen=True)
class PassTime:
    """Seconds of one forward or backward: computation, and exposed communication of tp and sp."""

    compute: Floats
    tp: Floats
    sp: Floats
    window: Any
    """Seconds of it in which the links that gradients take are free."""


@dataclass(frozen=True)
class LayerTime:
    """One layer and one micro-batch."""

    forward: PassTime
    backward: PassTime
    selective_forward: PassTime
    """What selective recomputation repeats."""
    weight_gradient: Any = 0.0
    """The part of the backward that no other stage waits for: one of the two matmuls of each linear."""


@dataclass(frozen=True)
class EndTime:
    """Embedding or head, one micro-batch."""

    forward: PassTime
    backward: PassTime
    weight_gradient: Any = 0.0


class LayerClock:
    """Times for all rows of a table."""

    def __init__(self, question: Question, table: LayoutTable, network: Network) -> None:
        self.question, self.table, self.network = question, table, network
        self.costs = question.implementation.time
        self.values = layout_values(question, table)
        self.device = DeviceClock(question.cluster, network.ranks_on_node, table.precision)
        self.float8 = table.precision == "fp8"
        self.tp_group = network.group(table, ("tp",))
        self.heads_group, self.sp_group = network.group(table, ("sp",)).split(self.values["U"])
        self.tp_share = float(self.costs.tp_exposed_share)
        self.stage_group = network.group(table, ("pp",))
        gradients = network.group(table, ("dp", "sp"))
        self.gradients_leave_node = ~gradients.inside_node
        self.transfers_leave_node = (self.stage_group.size > 1) & ~self.stage_group.inside_node

    @cached_property
    def _token_tiles(self) -> Any:
        return self.device.tiles(self.values["T"])

    def matmul_s(self, tokens: Any, outputs: Any, inputs: Any, in_layer: bool = True) -> tuple[Any, Any]:
        """One linear, forward and backward: the gradients of its input and of its weight.

        Linears of a layer run in float8 where that is asked for; the head stays in bf16 (Megatron-LM's output
        layer, torchtitan's filter of float8 modules).
        """
        device, e = self.device, float(self.values["e"])
        out, into = device.tiles(outputs), device.tiles(inputs)
        rate = None if in_layer else device.inner_matmul_flops_per_s
        forward = device.matmul_s(tokens, out, into, e, rate)
        weight = device.matmul_s(into, out, tokens, e, rate)
        if in_layer and self.costs.matmul_sums_gradients:
            weight = np.maximum(weight, device.traffic_s(8.0 * into * out + e * tokens * (into + out)))
        backward = device.matmul_s(tokens, into, out, e, rate) + weight
        if self.float8 and in_layer:
            forward = forward + device.traffic_s(FLOAT8_CAST_BYTES * tokens * inputs)
            backward = backward + device.traffic_s(FLOAT8_CAST_BYTES * tokens * outputs)
        return forward, backward

    def _linears_s(self) -> tuple[Any, Any]:
        """All linears of a layer, forward and backward."""
        model, tp = self.question.model, self.values["tp"]
        forward: Any = 0.0
        backward: Any = 0.0
        matrices = Counter(
            (t.shape, t.tp_split)
            for t in model.parameter_tensors()
            if t.place == "layer" and t.name.startswith(("attention.", "mlp.")) and t.name.endswith(".weight")
            if len(t.shape) == 2 and "norm" not in t.name
        )
        for ((outputs, inputs), split), count in matrices.items():
            out = np.ceil(outputs / tp) if split == "column" else outputs
            into = np.ceil(inputs / tp) if split == "row" else inputs
            one_forward, one_backward = self.matmul_s(self._token_tiles, out, into)
            forward, backward = forward + count * one_forward, backward + count * one_backward
        return forward, backward

    def _attention_s(self) -> tuple[Any, Any]:
        """Core attention of a whole layer, forward and backward, without waiting for the ring."""
        v, model, device = self.values, self.question.model, self.device
        seq_len = v["L"]
        seen = mean_attention_pairs(model, seq_len)
        # Materialised scores of a rank's own block are computed in full; the zigzag split halves the others.
        everything = float(seq_len) * seq_len
        in_full = (everything + (v["R"] - 1.0) * seen) / v["R"]
        pairs = np.where(v["math"], in_full, seen)
        flops = 4.0 * v["B"] * pairs / v["sp"] * v["a"] * v["d"]
        score_bytes = v["B"] * v["a"] * pairs / v["sp"] * v["e"]
        fused, plain = (
            device.attention_s(flops, v["S"] * v["U"], float(v["d"]), model.causal, v["R"]),
            flops / device.scores_flops_per_s,
        )
        slower = np.where(v["rsa"], float(self.costs.rsa_attention_factor), 1.0)
        # A ring merges each block's result into a float32 accumulator; backward adds to dq, dk and dv.
        merge = np.where(v["ring"], v["R"] * device.traffic_s(v["T"] * v["a"] * v["d"] * (8 + v["e"])), 0.0)
        launches = v["R"] * v["G"] * device.launch_s
        forward = np.where(
            v["math"], slower * (plain + device.traffic_s(SCORE_PASSES[0] * score_bytes)), fused
        )
        backward = np.where(
            v["math"],
            slower * (BACKWARD_PER_FORWARD * plain + device.traffic_s(SCORE_PASSES[1] * score_bytes)),
            FLASH_BACKWARD_PER_FORWARD * fused,
        )
        return forward + merge + launches, backward + 2.0 * merge + launches

    def layer(self, parameters: RankParameters) -> LayerTime:
        """One layer of the model."""
        v, model, zero = self.values, self.question.model, np.zeros(len(self.table))
        (linears_f, linears_b), (attention_f, attention_b) = self._linears_s(), self._attention_s()
        travelling = float(v["e"]) if self.costs.ring_gradients_in_compute_dtype else 4.0
        ring = ring_time(
            v, self.network, self.sp_group, attention_f, attention_b, self.costs.ring_overlaps, travelling
        )
        sp_f, sp_b = ring.forward, ring.backward
        exchange = self._heads_exchange_s()
        moved = v["e"] * (
            RESIDUAL_PASSES * v["Tr"] * v["h"]
            + (GATED_PASSES if model.gated_mlp else PLAIN_PASSES) * v["T"] * v["f"]
            + (2 * v["T"] * (v["a"] + v["k"]) * v["d"] if v["rope"] else 0)
        )
        device = self.device
        between = device.traffic_s(self.costs.elementwise_factor * moved) + LAYER_KERNELS * device.launch_s
        # Each micro-batch adds its weight gradients to the float32 ones: read, add, write.
        added = (v["m"] > 1) & (not self.costs.matmul_sums_gradients)
        accumulate = np.where(added, device.traffic_s((8 + v["e"]) * parameters.layer.whole), 0.0)
        residual_bytes = v["e"] * v["T"] * v["h"]
        split = v["tp_sequence_parallel"]
        gather = self.network.all_gather_s(residual_bytes, self.tp_group)
        # Two blocks a layer: an all-reduce each (or a gather and a scatter) forward and backward; with
        # tp_sequence_parallel the backward gathers the linears' input again.
        block = np.where(split, 2.0 * gather, self.network.all_reduce_s(residual_bytes, self.tp_group))
        again = np.where(split, gather, 0.0)
        forward_s = linears_f + attention_f + between
        backward_s = linears_b + attention_b + BACKWARD_PER_FORWARD * between + accumulate
        busy_f, busy_b = 2.0 * block, 2.0 * (block + again)
        tp_f, tp_b = self._tp_exposed(busy_f, linears_f), self._tp_exposed(busy_b, linears_b)
        host_f, host_b = self._host_s(split)
        if self.costs.selective_repeats == "operations":
            selective = self._pass(linears_f / 2.0 + between, tp_f, zero, busy_f, 0.0, 0.0)
        else:
            selective = self._pass(attention_f, zero, sp_f, 0.0, ring.busy_forward, 0.0)
        sp_f, sp_b = sp_f + exchange, sp_b + exchange
        return LayerTime(
            forward=self._pass(
                _issued(forward_s, tp_f + sp_f, host_f), tp_f, sp_f, busy_f, ring.busy_forward, exchange
            ),
            backward=self._pass(
                _issued(backward_s, tp_b + sp_b, host_b), tp_b, sp_b, busy_b, ring.busy_backward, exchange
            ),
            selective_forward=selective,
            weight_gradient=linears_b / 2.0 + accumulate,
        )

    def _pass(
        self, compute: Any, tp: Any, sp: Any, tp_busy: Any, ring_busy: Any, heads_busy: Any
    ) -> PassTime:
        """Gradients may travel whenever their links are free: the whole pass, waits included, less the time
        that tp, the ring and the exchange of heads are on the same links, hidden or not. So what a faster
        device no longer hides is not counted twice."""
        window: Any = compute + tp + sp
        for group, busy in (
            (self.tp_group, tp_busy),
            (self.sp_group, ring_busy),
            (self.heads_group, heads_busy),
        ):
            if np.any(busy):
                window = window - np.where(self.gradients_leave_node != group.inside_node, busy, 0.0)
        return PassTime(compute, tp, sp, np.maximum(window, 0.0))

    def _tp_exposed(self, communication: Any, matmuls: Any) -> Any:
        """What of tp's collectives is waited for: where a trainer runs them piecewise beside their matmuls,
        copying between the devices of a node, a share of it and all that takes longer than the matmuls."""
        if self.tp_share == 1.0:
            return communication
        beside = np.maximum(self.tp_share * communication, communication - matmuls)
        return np.where(self.tp_group.inside_node, beside, communication)

    def _heads_exchange_s(self) -> Any:
        """All-to-alls of a pass where neighbours in sp split the heads: q, k and v, and the output; or their
        gradients. Nothing hides them."""
        v = self.values
        if np.all(v["U"] == 1.0):
            return 0.0
        token_bytes = v["e"] * v["T"] * v["d"]
        there = self.network.all_to_all_s(token_bytes * (v["a"] + 2.0 * v["k"]), self.heads_group)
        return there + self.network.all_to_all_s(token_bytes * v["a"], self.heads_group)

    def _host_s(self, split: Any) -> tuple[Any, Any]:
        """The least time of a layer, forward and backward: what the host takes to issue it."""
        forward, backward = float(self.costs.host_layer_s), float(self.costs.host_layer_backward_s)
        wait = float(self.costs.tp_step_beside_transfers_s)
        if wait == 0.0:
            return forward, backward
        steps = np.where(self.transfers_leave_node, (self.tp_group.size - 1.0) * wait, 0.0)
        return forward + np.where(split, 4.0, 2.0) * steps, backward + np.where(split, 6.0, 2.0) * steps

    def embedding(self) -> EndTime:
        """Look-up and its gradient: memory traffic, and one all-reduce of the vocabulary-parallel sum."""
        v, zero, device = self.values, np.zeros(len(self.table)), self.device
        look_up = device.traffic_s(3.0 * v["e"] * v["Tr"] * v["h"]) + device.launch_s
        reduce = self.network.all_reduce_s(v["e"] * v["T"] * v["h"], self.tp_group)
        return EndTime(
            self._pass(zero + look_up, reduce, zero, reduce, 0.0, 0.0),
            self._pass(zero + look_up, zero, zero, 0.0, 0.0, 0.0),
            look_up,
        )

    def head(self) -> EndTime:
        """Final norm, transform, logits and loss."""
        v, model, zero, device = self.values, self.question.model, np.zeros(len(self.table)), self.device
        if model.head not in ("lm", "mlm"):
            nothing = PassTime(zero, zero, zero, zero)
            return EndTime(nothing, nothing)
        forward, backward = self.matmul_s(
            self._token_tiles, v["V"], v["E"] if model.head == "mlm" else v["h"], in_layer=False
        )
        if model.head == "mlm":
            transform_f, transform_b = self.matmul_s(device.tiles(v["Tr"]), v["E"], v["h"], in_layer=False)
            forward, backward = forward + transform_f, backward + transform_b
        logits = v["e"] / 2.0 * v["T"] * v["V"]
        loss_f = device.traffic_s(float(self.costs.loss_forward_bytes) * logits)
        loss_b = device.traffic_s(float(self.costs.loss_backward_bytes) * logits)
        reduce = self.network.all_reduce_s(v["e"] * v["T"] * v["h"], self.tp_group)
        statistics = self.network.all_reduce_s(4.0 * v["T"], self.tp_group)  # maximum; sum and target
        return EndTime(
            self._pass(forward + loss_f, 3.0 * statistics, zero, 3.0 * statistics, 0.0, 0.0),
            self._pass(backward + loss_b, reduce, zero, reduce, 0.0, 0.0),
            backward / 2.0,
        )


def _issued(computed_s: Any, waited_s: Any, host_s: Any) -> Any:
    """Computation of a layer that takes, with what it waits for, at least the host's time."""
    return computed_s if np.isscalar(host_s) and host_s == 0.0 else np.maximum(computed_s, host_s - waited_s)
