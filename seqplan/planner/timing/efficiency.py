"""Seconds of single operations on one device: a roofline with rates that grow with the size of the work.

A matmul of M x N results over K products runs at

    peak x matmul_efficiency x MN / (MN + half_outputs) x K / (K + half_depth)

M and N in whole tiles. The first fraction is what small results lose because their tiles do not fill the
multiprocessors, the second what every tile spends on filling and emptying its pipeline. Written as time the
curve costs one multiplication more than a constant rate: 2 (MN + half_outputs) (K + half_depth) / best rate.
Fused attention saturates in the length of its blocks and in the size of a head in the same way. Every
operation also takes at least the time that its bytes need, and a launch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seqplan.planner.cluster_spec import ClusterSpec

ATTENTION_DTYPE = {"fp8": "bf16"}
"""float8 training multiplies the layers' matrices in float8; attention, head and all between are bf16."""


class DeviceClock:
    """One rank's device, with its share of the node's cores where ranks are CPU processes."""

    def __init__(self, cluster: ClusterSpec, ranks_on_node: int, precision: str) -> None:
        device, share = cluster.device, cluster.compute_share(ranks_on_node)
        peaks: dict[str, float] = {name: float(rate) for name, rate in device.peak_flops_per_s.items()}
        self.core_share = share
        """Of a core, while all ranks of the node work; 1 on GPUs."""
        self.peak_flops_per_s = peaks[precision]
        self.matmul_flops_per_s = share * peaks[precision] * device.matmul_share(precision)
        inner = ATTENTION_DTYPE.get(precision, precision)
        self.attention_flops_per_s = share * peaks[inner] * device.attention_share(inner)
        # Materialised attention and the head multiply matrices too, but never in float8.
        self.inner_matmul_flops_per_s = share * peaks[inner] * device.matmul_share(inner)
        # Scores are products in fp32; a CPU has no matmul of narrow factors that gives them (rsa_scores.py).
        of_scores = "fp32" if device.kind == "cpu" and "fp32" in peaks else inner
        self.scores_flops_per_s = share * peaks[of_scores] * device.matmul_share(of_scores)
        self.memory_bytes_per_s = share * float(device.memory_bytes_per_s) * device.memory_share(inner)
        # On a CPU the core that computes also launches.
        self.launch_s = float(device.kernel_launch_s) / share
        self.tile = float(device.matmul_tile)
        self.half_outputs = device.of_dtype("matmul_half_outputs", precision)
        self.half_depth = device.of_dtype("matmul_half_depth", precision)
        self.half_block = device.of_dtype("attention_half_tokens", inner)
        self.half_head = device.of_dtype("attention_half_head_dim", inner)
        self.causal_tile = float(device.attention_causal_tile)

    def traffic_s(self, moved_bytes: Any) -> Any:
        """Seconds to move bytes through the device's memory."""
        return moved_bytes / self.memory_bytes_per_s

    def tiles(self, length: Any) -> Any:
        """A length in whole tiles."""
        return length if self.tile <= 1 else np.ceil(length / self.tile) * self.tile

    def matmul_s(
        self, rows: Any, columns: Any, depth: Any, element_bytes: float, flops_per_s: float | None = None
    ) -> Any:
        """One matmul [rows, depth] x [depth, columns], all three in whole tiles already."""
        results = rows * columns
        rate = self.matmul_flops_per_s if flops_per_s is None else flops_per_s
        computed = 2.0 * (results + self.half_outputs) * (depth + self.half_depth) / rate
        moved = self.traffic_s(element_bytes * (depth * (rows + columns) + results))
        return np.maximum(computed, moved) + self.launch_s

    def attention_s(
        self, flops: Any, block_tokens: Any, head_dim: float, causal: bool, ring_size: Any = 1.0
    ) -> Any:
        """Fused attention; `block_tokens` long are the blocks of queries that it is called with.

        Of a ring's blocks only a rank's own one is masked: what the mask hides of it is as much as counts,
        and 1 / `ring_size` of all that counts.
        """
        narrow = (1.0 + self.half_head / head_dim) / self.attention_flops_per_s
        hidden = np.minimum(self.causal_tile / block_tokens, 1.0) / ring_size if causal else 0.0
        return flops * (1.0 + hidden) * (1.0 + self.half_block / block_tokens) * narrow
