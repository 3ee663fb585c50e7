"""What of a ring's hops its blocks do not hide: only max(0, hop - block) counts, hop by hop.

A hop is hidden where a rank has tokens enough: the block's matmuls grow with their square, what is sent with
their number. From S = e g F / B tokens a rank on (causal, each hop half a pair of blocks; half of that where
every token sees all), F being the attention's FLOP/s and B the link's bytes/s, the forward's hops cost
nothing; in the backward both grow, to 1.2 S where gradients travel in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from seqplan.planner.collectives import Group, Network


@dataclass(frozen=True)
class RingTime:
    """Seconds of one layer's ring: what is waited for, and how long its links are in use."""

    forward: Any
    backward: Any
    busy_forward: Any
    busy_backward: Any


def ring_time(
    values: dict[str, Any],
    network: Network,
    group: Group,
    forward_s: Any,
    backward_s: Any,
    overlaps: bool,
    gradient_bytes: float = 4.0,
) -> RingTime:
    """The ring of one layer whose attention takes `forward_s` and `backward_s`.

    `gradient_bytes`: of an element of the dK and dV that travel.
    """
    v, hops = values, np.maximum(values["R"] - 1.0, 0.0)
    kv_bytes = 2.0 * v["T"] * v["k"] * v["d"]
    # Groups of heads take turns: the bytes of a hop in G messages.
    hop_kv = v["G"] * network.neighbour_s(kv_bytes * v["e"] / v["G"], group)
    hop_gradient = v["G"] * network.neighbour_s(kv_bytes * gradient_bytes / v["G"], group)
    hides = 1.0 if overlaps and network.overlaps else 0.0
    block_f, block_b = hides * forward_s / v["R"], hides * backward_s / v["R"]

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
    rsa_b = 2.0 * hops * (exposed(hop_kv / 2.0, block_b / 4.0) + exposed(hop_gradient / 2.0, block_b / 4.0))
    travels = v["ring"] | v["rsa"]
    return RingTime(
        np.where(v["ring"], ring_f, np.where(v["rsa"], rsa_f, 0.0)),
        np.where(v["ring"], ring_b, np.where(v["rsa"], rsa_b, 0.0)),
        np.where(travels, hops * hop_kv, 0.0),
        np.where(travels, hops * (hop_kv + hop_gradient), 0.0),
    )
