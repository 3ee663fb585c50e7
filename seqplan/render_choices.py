"""One layout in words: its degrees, its choices, and the cells that stand for them in a table."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from seqplan.planner.layout import DEFAULT_MESH_ORDER, Layout
from seqplan.render import plural

MOST_LISTED = 8
"""Stages up to which the layers of each are listed."""


def degrees(layout: Layout) -> str:
    """dp2 pp1 tp4 sp8, in the order of the axes."""
    return " ".join(f"{axis}{degree}" for axis, degree in layout.degrees.items())


def choices(layout: Layout) -> str:
    """Everything but the degrees, defaults left out where they say nothing."""
    words = [f"micro-batch {layout.micro_batch_size}", f"zero {layout.zero_stage}"]
    if layout.zero_shard_size is not None:
        words[-1] += f" over {plural(layout.zero_shard_size, 'rank')}"
    words.append(f"recompute {layout.recompute_text}")
    if layout.recompute_layers is not None and layout.pp > 1:
        words[-1] += f" ({layout.recompute_layers:,} a stage)"
    words.append(f"attention {attention(layout)} on {layout.kernel} kernel")
    if heads_and_ring(layout):
        words.append(f"heads split over {layout.ulysses_degree} of sp={layout.sp}")
    if layout.tp_sequence_parallel:
        words.append("tp sequence parallel")
    if layout.schedule != "none":
        words.append(f"{layout.schedule}, stages of {stage_layers(layout.stage_layers)} layers")
    if layout.num_virtual_stages > 1:
        words.append(f"{layout.num_virtual_stages} virtual stages")
    words.append(layout.precision)
    if layout.mesh_order != DEFAULT_MESH_ORDER:
        words.append(f"mesh order {','.join(layout.mesh_order)}")
    return ", ".join(words)


def attention(layout: Layout) -> str:
    """plain where it needs no exchange over sp."""
    return "plain" if layout.attention == "none" else layout.attention


def recompute_cell(layout: Layout) -> str:
    """full, or full 4/32 (and sel 4/32 of selective) where only so many of all layers are."""
    if layout.recompute == "none" or layout.recompute_layers is None:
        return layout.recompute
    mode = "sel" if layout.recompute == "selective" else layout.recompute
    return f"{mode} {layout.layers_recomputed}/{sum(layout.stage_layers)}"


def heads_and_ring(layout: Layout) -> bool:
    """Whether neighbours in sp split the heads, and a ring joins them."""
    return 1 < layout.ulysses_degree < layout.sp


def attention_cell(layout: Layout) -> str:
    """ring, ulysses (heads alone) or plain; ring u4 where the heads are split over 4 beside the ring."""
    return attention(layout) + (f" u{layout.ulysses_degree}" if heads_and_ring(layout) else "")


def stage_layers(layers: Sequence[int]) -> str:
    """8 where all are alike; 7,8,8,9; of a deep pipeline 3, 30 x 4, 3."""
    if len(set(layers)) == 1:
        return str(layers[0])
    if len(layers) <= MOST_LISTED:
        return ",".join(map(str, layers))
    runs = [(value, len(list(group))) for value, group in itertools.groupby(layers)]
    return ", ".join(f"{times} x {value}" if times > 1 else str(value) for value, times in runs)
