"""Exposed seconds of the gradient reduction and of ZeRO's gathers, over dp x sp.

Parameters are replicated over sp, so gradients are summed over dp and sp together. What overlaps is an
assumption, said in every time estimate: a reduction hides behind the backward of the micro-batch that makes
it, a gather behind the layer before it; the last bucket and the first gather have nothing to hide behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from seqplan.planner.activations import Floats
from seqplan.planner.collectives import Network
from seqplan.planner.layout_table import LayoutTable
from seqplan.planner.train_spec import PRECISION_BYTES

GRADIENT_BYTES = 4
"""Gradients are reduced in float32."""


@dataclass(frozen=True)
class DataParallelTime:
    """Exposed seconds: of every micro-batch (ZeRO 2 and 3), and once a step."""

    each_micro_batch: Floats
    once: Floats


def data_parallel_time(
    network: Network, table: LayoutTable, parameters: Floats, layers: int, forward_s: Any, backward_s: Any
) -> DataParallelTime:
    """One stage with `parameters` on each rank (whole, after tp), for all rows of the table."""
    group = network.group(table, ("dp", "sp"))
    inner, outer = group.split(np.minimum(table.zero_shard_size.astype(np.float64), group.size))
    buckets = max(layers, 1)
    weight_bytes = parameters * PRECISION_BYTES[table.precision]
    gradient_bytes = parameters * GRADIENT_BYTES
    reduce_all = network.all_reduce_s(gradient_bytes, group)
    scatter = network.reduce_scatter_s(gradient_bytes, inner)
    between = network.all_reduce_s(gradient_bytes / inner.size, outer)
    gather = network.all_gather_s(weight_bytes, inner)

    def exposed(communication: Any, window: Any) -> Any:
        return np.maximum(communication - window, 0.0)

    def once_exposed(communication: Any, window: Any) -> Any:
        return np.maximum(communication - window, communication / buckets)

    stage = table.zero_stage
    each = np.select(
        [stage == 2, stage == 3],
        [
            exposed(scatter, backward_s),
            exposed(gather, forward_s) + exposed(gather + scatter, backward_s),
        ],
        0.0,
    )
    once = np.select(
        [stage == 0, stage == 1, stage == 2],
        [
            once_exposed(reduce_all, backward_s),
            once_exposed(scatter + between, backward_s) + once_exposed(gather, forward_s),
            scatter / buckets + between + once_exposed(gather, forward_s),
        ],
        (scatter + gather) / buckets + between,
    )
    return DataParallelTime(np.asarray(each), np.asarray(once))
