"""Seconds of one layer and of both ends of the model for one micro-batch on one rank, communication included.

Compute is a roofline for each matmul, max(FLOPs / rate, bytes / bandwidth), plus the traffic of what lies
between them, plus a launch for each kernel. tp's collectives are not hidden. A ring's hop is hidden behind
the block in hand, so only max(0, hop - block) counts, hop by hop.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqplan.planner.activations import Floats
from seqplan.planner.collectives import Network
from seqplan.planner.flops import BACKWARD_PER_FORWARD, FLASH_BACKWARD_PER_FORWARD, mean_attention_pairs
from seqplan.planner.layout_table import LayoutTable
from seqplan.planner.model_states import RankParameters
from seqplan.planner.question import Question
from seqplan.planner.symbols import layout_values

RESIDUAL_PASSES = 10
"""Reads and writes of the residual stream in a forward: two norms (2 each), two additions (3 each)."""

GATED_PASSES, PLAIN_PASSES = 5, 2
"""The same of the MLP's inner width: activation (2), and with a gate the product (3)."""

SCORE_PASSES = (5, 7)
"""The same of materialised scores, forward and backward: scores, mask, softmax and their gradients."""

LAYER_KERNELS = 10
"""Kernels of a layer's forward besides its matmuls: norms, additions, rotation, activation, attention."""

LOSS_PASSES = (2, 3)
"""Reads and writes of the logits by the loss: maximum and sum; read, gradient written and cast."""


@dataclass(frozen=True)
class PassTime:
    """Seconds of one forward or backward: computation, and exposed communication of tp and sp."""

    compute: Floats
    tp: Floats
    sp: Floats


@dataclass(frozen=True)
class LayerTime:
    """One layer and one micro-batch."""

    forward: PassTime
    backward: PassTime
    core_attention_forward: PassTime
    """What selective recomputation repeats."""


@dataclass(frozen=True)
class EndTime:
    """Embedding or head, one micro-batch."""

    forward: PassTime
    backward: PassTime


class LayerClock:
    """Times for all rows of a table."""

    def __init__(self, question: Question, table: LayoutTable, network: Network) -> None:
        device = question.cluster.device
        self.question, self.table, self.network = question, table, network
        self.values = layout_values(question, table)
        share = 1.0
        if question.cluster.cores_per_node is not None:
            share = min(1.0, question.cluster.cores_per_node / network.ranks_on_node)
        peaks: dict[str, float] = {name: float(rate) for name, rate in device.peak_flops_per_s.items()}
        self.peak_flops_per_s = peaks[table.precision]
        self.matmul_flops_per_s = share * self.peak_flops_per_s * float(device.matmul_efficiency)
        self.attention_flops_per_s = share * self.peak_flops_per_s * float(device.attention_efficiency)
        self.memory_bytes_per_s = share * float(device.memory_bytes_per_s) * float(device.memory_efficiency)
        self.launch_s = float(device.kernel_launch_s)
        self.tp_group = network.group(table, ("tp",))
        self.sp_group = network.group(table, ("sp",))

    def traffic_s(self, moved_bytes: Any) -> Any:
        """Seconds to move bytes through the device's memory."""
        return moved_bytes / self.memory_bytes_per_s

    def matmul_s(self, tokens: Any, outputs: Any, inputs: Any) -> Any:
        """One matmul [tokens, inputs] x [inputs, outputs] of the compute dtype."""
        flops = 2.0 * tokens * outputs * inputs
        moved = self.values["e"] * (tokens * (outputs + inputs) + outputs * inputs)
        return np.maximum(flops / self.matmul_flops_per_s, self.traffic_s(moved)) + self.launch_s

    def _linears_forward_s(self) -> Any:
        model, tp = self.question.model, self.values["tp"]
        seconds: Any = 0.0
        matrices = Counter(
            (t.shape, t.tp_split)
            for t in model.parameter_tensors()
            if t.place == "layer" and t.name.startswith(("attention.", "mlp.")) and t.name.endswith(".weight")
            if len(t.shape) == 2 and "norm" not in t.name
        )
        for ((outputs, inputs), split), count in matrices.items():
            out = np.ceil(outputs / tp) if split == "column" else outputs
            into = np.ceil(inputs / tp) if split == "row" else inputs
            seconds = seconds + count * self.matmul_s(self.values["T"], out, into)
        return seconds

    def _attention_s(self) -> tuple[Any, Any]:
        """Core attention of a whole layer, forward and backward, without waiting for the ring."""
        v, model = self.values, self.question.model
        seq_len = v["L"]
        seen = mean_attention_pairs(model, seq_len)
        # Materialised scores of a rank's own block are computed in full; the zigzag split halves the others.
        everything = float(seq_len) * seq_len
        in_full = (everything + (v["sp"] - 1.0) * seen) / v["sp"]
        pairs = np.where(v["math"], in_full, seen)
        flops = 4.0 * v["B"] * pairs / v["sp"] * v["a"] * v["d"]
        score_bytes = v["B"] * v["a"] * pairs / v["sp"] * v["e"]
        fused, plain = flops / self.attention_flops_per_s, flops / self.matmul_flops_per_s
        # A ring merges each block's result into a float32 accumulator; backward adds to dq, dk and dv.
        merge = np.where(v["ring"], v["sp"] * self.traffic_s(v["T"] * v["a"] * v["d"] * (8 + v["e"])), 0.0)
        launches = v["sp"] * v["G"] * self.launch_s
        forward = np.where(v["math"], plain + self.traffic_s(SCORE_PASSES[0] * score_bytes), fused)
        backward = np.where(
            v["math"],
            BACKWARD_PER_FORWARD * plain + self.traffic_s(SCORE_PASSES[1] * score_bytes),
            FLASH_BACKWARD_PER_FORWARD * fused,
        )
        return forward + merge + launches, backward + 2.0 * merge + launches

    def _ring_exposed_s(self, forward_s: Any, backward_s: Any) -> tuple[Any, Any]:
        """What of the ring's hops the blocks do not hide: (forward, backward) of one layer."""
        v, hops = self.values, np.maximum(self.values["sp"] - 1.0, 0.0)
        kv_bytes = 2.0 * v["T"] * v["k"] * v["d"]
        # Groups of heads take turns: the bytes of a hop in G messages.
        hop_kv = v["G"] * self.network.neighbour_s(kv_bytes * v["e"] / v["G"], self.sp_group)
        hop_gradient = v["G"] * self.network.neighbour_s(kv_bytes * 4.0 / v["G"], self.sp_group)
        block_f, block_b = forward_s / v["sp"], backward_s / v["sp"]

        def exposed(hop: Any, block: Any) -> Any:
            return np.maximum(hop - block, 0.0)

        # ring: K and V travel during steps 0 to n-2; a block's dK and dV during the step after it, the last
        # of them after the last step. So steps 2 to n-2 carry both, and one hop of dK and dV waits.
        ring_f = hops * exposed(hop_kv, block_f)
        both = np.maximum(hops - 2.0, 0.0)
        ring_b = (
            np.minimum(hops, 2.0) * exposed(hop_kv, block_b)
            + both * exposed(hop_kv + hop_gradient, block_b)
            + np.where(hops >= 2.0, exposed(hop_gradient, block_b), 0.0)
            + np.where(hops >= 1.0, hop_gradient, 0.0)
        )
        # rsa: K, then V goes round, each hop behind half of a block; backward sends K and V round again and
        # circulates dK and dV, each behind a quarter.
        rsa_f = 2.0 * hops * exposed(hop_kv / 2.0, block_f / 2.0)
        rsa_b = (
            2.0 * hops * (exposed(hop_kv / 2.0, block_b / 4.0) + exposed(hop_gradient / 2.0, block_b / 4.0))
        )
        return (
            np.where(v["ring"], ring_f, np.where(v["rsa"], rsa_f, 0.0)),
            np.where(v["ring"], ring_b, np.where(v["rsa"], rsa_b, 0.0)),
        )

    def layer(self, parameters: RankParameters) -> LayerTime:
        """One layer of the model."""
        v, model, zero = self.values, self.question.model, np.zeros(len(self.table))
        linears, (attention_f, attention_b) = self._linears_forward_s(), self._attention_s()
        sp_f, sp_b = self._ring_exposed_s(attention_f, attention_b)
        moved = v["e"] * (
            RESIDUAL_PASSES * v["Tr"] * v["h"]
            + (GATED_PASSES if model.gated_mlp else PLAIN_PASSES) * v["T"] * v["f"]
            + (2 * v["T"] * (v["a"] + v["k"]) * v["d"] if v["rope"] else 0)
        )
        between = self.traffic_s(moved) + LAYER_KERNELS * self.launch_s
        # Each micro-batch adds its weight gradients to the float32 ones: read, add, write.
        accumulate = np.where(v["m"] > 1, self.traffic_s((8 + v["e"]) * parameters.layer.whole), 0.0)
        block = self.network.all_reduce_s(v["e"] * v["T"] * v["h"], self.tp_group)
        gather = self.network.all_gather_s(v["e"] * v["T"] * v["h"], self.tp_group)
        # Two blocks a layer: an all-reduce each (or a gather and a scatter) forward and backward; with
        # tp_sequence_parallel the backward gathers the linears' input again.
        again = np.where(v["tp_sequence_parallel"], gather, 0.0)
        return LayerTime(
            forward=PassTime(linears + attention_f + between, 2.0 * block, sp_f),
            backward=PassTime(
                BACKWARD_PER_FORWARD * (linears + between) + attention_b + accumulate,
                2.0 * (block + again),
                sp_b,
            ),
            core_attention_forward=PassTime(attention_f, zero, sp_f),
        )

    def embedding(self) -> EndTime:
        """Look-up and its gradient: memory traffic, and one all-reduce of the vocabulary-parallel sum."""
        v, zero = self.values, np.zeros(len(self.table))
        look_up = self.traffic_s(3.0 * v["e"] * v["Tr"] * v["h"]) + self.launch_s
        reduce = self.network.all_reduce_s(v["e"] * v["T"] * v["h"], self.tp_group)
        return EndTime(PassTime(zero + look_up, reduce, zero), PassTime(zero + look_up, zero, zero))

    def head(self) -> EndTime:
        """Final norm, transform, logits and loss."""
        v, model, zero = self.values, self.question.model, np.zeros(len(self.table))
        if model.head not in ("lm", "mlm"):
            nothing = PassTime(zero, zero, zero)
            return EndTime(nothing, nothing)
        matmul = self.matmul_s(v["T"], v["V"], v["E"] if model.head == "mlm" else v["h"])
        if model.head == "mlm":
            matmul = matmul + self.matmul_s(v["Tr"], v["E"], v["h"])
        logit_bytes = v["e"] * v["T"] * v["V"]
        reduce = self.network.all_reduce_s(v["e"] * v["T"] * v["h"], self.tp_group)
        statistics = self.network.all_reduce_s(4.0 * v["T"], self.tp_group)  # maximum; sum and target
        return EndTime(
            PassTime(matmul + self.traffic_s(LOSS_PASSES[0] * logit_bytes), 3.0 * statistics, zero),
            PassTime(
                BACKWARD_PER_FORWARD * matmul + self.traffic_s(LOSS_PASSES[1] * logit_bytes), reduce, zero
            ),
        )
