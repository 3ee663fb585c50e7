"""Curves through measured points, in the forms that the time model uses; least squares of relative errors.

Matmul:     seconds = 2 (MN + a)(K + b) / R      (timing/efficiency.py)
Attention:  seconds = FLOPs (1 + h / tokens)(1 + w / head size)(1 + min(t / tokens, 1)) / R
Transfers:  seconds = steps x latency + volume / rate, the rate of each kind its own   (collectives.py)

All three are linear in their coefficients once the two or three shapes of curvature are fixed, so they are
searched over a grid and the rest is solved. Relative errors, because a small matmul matters in a model as
much as a large one: a layer of small ones is made of many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from seqplan.planner.calibration.samples import (
    AttentionSample,
    MatmulSample,
    Transfer,
    TransferSample,
)

Floats = NDArray[np.float64]

HALF_OUTPUTS = (0.0, *np.geomspace(64.0, 4e6, 40))
HALF_DEPTHS = (0.0, *np.geomspace(4.0, 2048.0, 28))
HALF_TOKENS = (0.0, *np.geomspace(8.0, 16384.0, 32))
HALF_HEADS = (0.0, *np.geomspace(1.0, 128.0, 16))
CAUSAL_TILES = (0.0, 64.0, 128.0, 256.0, 512.0, 1024.0)

BACKWARD_PER_FORWARD = 2.5
"""Matmuls of attention's backward over its forward's (Dao 2307.08691, 2.3); a sample of both is 3.5."""

NO_BETTER = 1e-9
"""An error that is smaller by less is the same: it is rounding."""

LEAST_LATENCY_S, MOST_LATENCY_S = 1e-7, 0.5


@dataclass(frozen=True)
class Curve:
    """Best rate of one dtype, and the sizes at which half of it is reached."""

    flops_per_s: float
    half_sizes: tuple[float, ...]
    """Of a matmul (outputs, depth); of attention (tokens, head size, causal tile)."""
    error: float
    """Root mean square of log(curve / measured)."""


@dataclass(frozen=True)
class TransferLine:
    """One link: latency of a step, and the rate of each kind of transfer."""

    latency_s: float
    bytes_per_s: dict[Transfer, float]
    error: float


def matmul_curve(samples: Sequence[MatmulSample]) -> Curve:
    """The curve through matmuls of one dtype."""
    outputs = np.array([float(each.rows) * each.columns for each in samples])
    depth = np.array([float(each.depth) for each in samples])
    seconds = np.array([each.seconds for each in samples])
    grid = [(a, b, 2.0 * (outputs + a) * (depth + b)) for a, b in product(HALF_OUTPUTS, HALF_DEPTHS)]
    return _best([((a, b), work) for a, b, work in grid], seconds)


def causal_tile(kinds: Sequence[Sequence[AttentionSample]]) -> float:
    """The tile that explains the samples of all dtypes together best: one kernel computes them all."""
    return min(CAUSAL_TILES, key=lambda tile: sum(attention_curve(each, tile).error ** 2 for each in kinds))


def attention_curve(samples: Sequence[AttentionSample], tile: float) -> Curve:
    """The curve through forward and backward together: a training step always runs both."""
    tokens = np.array([float(each.tokens) for each in samples])
    flops = np.array([(1.0 + BACKWARD_PER_FORWARD) * each.forward_flops for each in samples])
    seconds = np.array([each.forward_s + each.backward_s for each in samples])
    size = np.array([float(each.head_dim) for each in samples])
    hidden = 1.0 + np.minimum(tile / tokens, 1.0)
    grid = [
        ((half, narrow, tile), flops * hidden * (1.0 + half / tokens) * (1.0 + narrow / size))
        for half, narrow in product(HALF_TOKENS, HALF_HEADS)
    ]
    return _best(grid, seconds)


def transfer_line(samples: Sequence[TransferSample], most_bytes_per_s: float = float("inf")) -> TransferLine:
    """One latency for all kinds, a rate for each: searched over the latency, solved for the rates.

    `most_bytes_per_s`: no rate is above it, so that noise in small messages cannot make one up.
    """
    kinds = sorted({each.kind for each in samples})
    steps = np.array([ring_steps(each.kind, each.ranks) for each in samples])
    volume = np.array([ring_volume(each.kind, each.ranks) * each.whole_bytes for each in samples])
    seconds = np.array([each.seconds for each in samples])
    of_kind = {kind: np.array([each.kind == kind for each in samples]) for kind in kinds}

    def solve(latency_s: float) -> tuple[float, dict[Transfer, float]]:
        rates: dict[Transfer, float] = {}
        squares = 0.0
        for kind, chosen in of_kind.items():
            fixed, moved, measured = steps[chosen] * latency_s, volume[chosen], seconds[chosen]
            grid = np.geomspace(moved.max() / measured.max() / 64.0, moved.max() / measured.min() * 64.0, 400)
            grid = np.minimum(grid, most_bytes_per_s)
            miss = np.log((fixed + moved / grid[:, None]) / measured) ** 2
            total = miss.sum(axis=1)
            best = int(np.argmin(total))
            rates[kind] = float(grid[best])
            squares += float(total[best])
        return squares, rates

    candidates = [
        each
        for each in np.geomspace(seconds.min() / 64.0, seconds.min() * 4.0, 60)
        if LEAST_LATENCY_S <= each <= MOST_LATENCY_S
    ] or [LEAST_LATENCY_S]
    solved = [(*solve(float(latency)), float(latency)) for latency in candidates]
    squares, rates, latency_s = min(solved, key=lambda each: each[0])
    return TransferLine(latency_s, rates, float(np.sqrt(squares / len(samples))))


def ring_steps(kind: Transfer, ranks: int) -> float:
    """Latencies of one transfer, as collectives.py counts them."""
    if kind == "neighbour":
        return 1.0
    return min(ranks - 1.0, 2.0 * float(np.log2(ranks))) if kind == "all_reduce" else ranks - 1.0


def ring_volume(kind: Transfer, ranks: int) -> float:
    """Bytes on the link over the bytes of the whole, as collectives.py counts them."""
    if kind == "neighbour":
        return 1.0
    return (2.0 if kind == "all_reduce" else 1.0) * (ranks - 1.0) / ranks


def _best(grid: Sequence[tuple[tuple[float, ...], Floats]], seconds: Floats) -> Curve:
    """The half sizes whose work, divided by a rate, comes closest to the seconds; of equals the first."""
    best: Curve | None = None
    for half_sizes, work in grid:
        logs = np.log(work / seconds)
        middle = float(np.mean(logs))
        error = float(np.sqrt(np.mean((logs - middle) ** 2)))
        if best is None or error < best.error - NO_BETTER:
            best = Curve(float(np.exp(middle)), tuple(float(size) for size in half_sizes), error)
    assert best is not None, "a grid has points"
    return best
