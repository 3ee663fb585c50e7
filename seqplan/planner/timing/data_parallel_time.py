"""Exposed seconds of the gradient reduction and of ZeRO's gathers, over dp x sp.

Parameters are replicated over sp, so gradients are summed over dp and sp together. Every layer is reduced
and gathered by itself, so each pays the latency of its collective; over thousands of ranks that is the
larger part. What overlaps is an assumption, said in every time estimate, which a trainer's file or the flag
--no-overlap takes back: a reduction hides behind the backward of the micro-batch that makes it, a gather
behind the layer before it; the last bucket and the first gather have nothing to hide behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from seqplan.planner.activations import Floats
from seqplan.planner.choosing.layout_table import LayoutTable
from seqplan.planner.collectives import Network
from seqplan.planner.question import Question
from seqplan.planner.train_spec import PRECISION_BYTES


@dataclass(frozen=True)
class DataParallelTime:
    """Exposed seconds: of every micro-batch (ZeRO 2 and 3), and once a step."""

    each_micro_batch: Floats
    once: Floats


class DataParallelClock:
    """The collectives of one stage's parameters, for all rows of a table."""

    def __init__(self, question: Question, table: LayoutTable, network: Network) -> None:
        self.table, self.network, self.costs = table, network, question.implementation.time
        self.gradient_bytes = question.train.gradient_bytes
        self.weight_bytes = PRECISION_BYTES[table.precision]
        self.group = network.group(table, ("dp", "sp"))
        shard = np.minimum(table.zero_shard_size.astype(np.float64), self.group.size)
        self.inner, self.outer = self.group.split(shard)

    def exposed(self, parameters: Floats, layers: int, forward_s: Any, backward_s: Any) -> DataParallelTime:
        """`parameters` on each rank (whole, after tp), in `layers` messages; `forward_s` and `backward_s` are
        the parts of a micro-batch's passes in which the links are free (layer_time.py)."""
        network, stage, costs = self.network, self.table.zero_stage, self.costs
        if not network.overlaps:
            forward_s = backward_s = 0.0
        buckets = float(max(layers, 1))
        gradients = parameters * self.gradient_bytes
        reduce_all = network.all_reduce_s(gradients, self.group, buckets)
        scatter = network.reduce_scatter_s(gradients, self.inner, buckets)
        between = network.all_reduce_s(gradients / self.inner.size, self.outer, buckets)
        gather = network.all_gather_s(parameters * self.weight_bytes, self.inner, buckets)
        behind_backward = backward_s if costs.reduction_overlaps else 0.0
        behind_forward = forward_s if costs.gather_overlaps else 0.0
        # A micro-batch's sums may run on behind the forward that follows; the step's last ones have none.
        follows = costs.reduction_overlaps and costs.reduction_behind == "micro_batch"
        behind_micro_batch = behind_backward + (forward_s if follows else 0.0)

        def exposed(communication: Any, window: Any) -> Any:
            return np.maximum(communication - window, 0.0)

        def once_exposed(communication: Any, window: Any) -> Any:
            return np.maximum(communication - window, communication / buckets)

        prefetched = gather if costs.prefetch_overlaps else 0.0
        summed = scatter if costs.reduction_overlaps else 0.0
        each = np.select(
            [stage == 2, stage == 3],
            [
                exposed(scatter, behind_micro_batch),
                exposed(prefetched, forward_s)
                + exposed(prefetched + summed, backward_s)
                + 2.0 * (gather - prefetched)
                + (scatter - summed),
            ],
            0.0,
        )
        gathered = once_exposed(gather, behind_forward)
        once = np.select(
            [stage == 0, stage == 1, stage == 2],
            [
                once_exposed(reduce_all, behind_backward),
                once_exposed(scatter + between, behind_backward) + gathered,
                scatter / buckets + between + gathered,
            ],
            (scatter + gather) / buckets + between,
        )
        return DataParallelTime(np.asarray(each), np.asarray(once))
