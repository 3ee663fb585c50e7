"""One layout in words: its degrees, its choices, and the cells that stand for them in a table."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from seqplan.planner.layout import Layout
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
    words.append(f"recompute {layout.recompute}")
    if layout.recompute_layers is not None:
        words[-1] += f" ({plural(layout.recompute_layers, 'layer')} a stage)"
    words.append(
        f"attention {'plain' if layout.attention == 'none' else layout.attention} on {layout.kernel} kernel"
    )
    if layout.tp_sequence_parallel:
        words.append("tp sequence parallel")
    if layout.schedule != "none":
        words.append(f"{layout.schedule}, stages of {stage_layers(layout.stage_layers)} layers")
    if layout.num_virtual_stages > 1:
        words.append(f"{layout.num_virtual_stages} virtual stages")
    words.append(layout.precision)
    return ", ".join(words)


def stage_layers(layers: Sequence[int]) -> str:
    """8 where all are alike; 7,8,8,9; of a deep pipeline 3, 30 x 4, 3."""
    if len(set(layers)) == 1:
        return str(layers[0])
    if len(layers) <= MOST_LISTED:
        return ",".join(map(str, layers))
    runs = [(value, len(list(group))) for value, group in itertools.groupby(layers)]
    return ", ".join(f"{times} x {value}" if times > 1 else str(value) for value, times in runs)
