"""Layout: how one training job is split, and how one is written down in short; defaults: layout_defaults.py.

A layout may be illegal: legality.py says why, with every number, so the constructor checks types only.
"""

from __future__ import annotations

import math
import re
from typing import Any, Literal

from pydantic import Field

from seqplan.planner.errors import SeqplanError
from seqplan.planner.spec import Spec

AXES: tuple[str, ...] = ("dp", "pp", "tp", "sp")
"""The parallel axes. No formula may assume that there are exactly these: an expert axis may join."""

DEFAULT_MESH_ORDER: tuple[str, ...] = ("pp", "dp", "sp", "tp")
"""Outermost to innermost: tp and then sp stay inside a node, where links are fastest."""

LARGEST_DEGREE = 2**22
"""Four million ranks: a larger degree is a slip, and products of degrees would leave 64-bit integers."""

LARGEST_COUNT = 2**40
"""The same for counts of sequences and layers."""

Attention = Literal["none", "ring", "rsa", "ulysses"]
Kernel = Literal["flash", "efficient", "math"]
Schedule = Literal["none", "1f1b", "interleaved", "zbh1", "zbh2", "zbv", "gpipe"]
Recompute = Literal["none", "selective", "full"]
StageBalance = Literal["layers", "matmuls"]


class Layout(Spec):
    """One complete choice. Degrees multiply to the world size."""

    dp: int = Field(ge=1, le=LARGEST_DEGREE, description="data-parallel replicas")
    pp: int = Field(ge=1, le=LARGEST_DEGREE, description="pipeline stages")
    tp: int = Field(ge=1, le=LARGEST_DEGREE, description="tensor-parallel ranks")
    sp: int = Field(ge=1, le=LARGEST_DEGREE, description="ring sequence-parallel ranks")
    micro_batch_size: int = Field(
        ge=1, le=LARGEST_COUNT, description="sequences in one micro-batch of one dp rank"
    )
    attention: Attention = Field(
        default="none", description="none: plain (sp = 1); ring; rsa; ulysses: sp ranks split the heads"
    )
    ulysses_degree: int = Field(
        default=1,
        ge=1,
        le=LARGEST_DEGREE,
        description="neighbours in sp that split heads by all-to-all; a ring goes over sp / this many ranks",
    )
    kernel: Kernel = Field(default="flash", description="what computes a block of attention")
    schedule: Schedule = Field(default="none", description="pipeline schedule; none where pp = 1")
    num_virtual_stages: int = Field(
        default=1, ge=1, le=LARGEST_DEGREE, description="interleaved chunks a rank"
    )
    recompute: Recompute = Field(
        default="none", description="what backward computes again; selective: core attention only"
    )
    recompute_layers: int | None = Field(
        default=None, ge=0, le=LARGEST_COUNT, description="how many of a stage's layers; left out: all"
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(
        default=0, description="0: replicated; shards optimizer (1), gradients too (2), weights too (3)"
    )
    zero_shard_size: int | None = Field(
        default=None, ge=1, le=LARGEST_COUNT, description="ranks of dp x sp that share states; left out: all"
    )
    precision: Literal["fp32", "bf16", "fp16", "fp8"]
    tp_sequence_parallel: bool = Field(
        default=False, description="norms and residuals split over tp by tokens"
    )
    mesh_order: tuple[str, ...] = Field(
        default=DEFAULT_MESH_ORDER, description="the axes, outermost first: pp,dp,sp,tp"
    )
    stage_layers: tuple[int, ...] = Field(description="layers of each pipeline stage: 8,8,7,7")

    @property
    def degrees(self) -> dict[str, int]:
        """Degree of each axis, in the order of AXES."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def world_size(self) -> int:
        return math.prod(self.degrees.values())

    @property
    def recompute_text(self) -> str:
        """none or full; `full on 4 of 32 layers` where a stage recomputes only some of its own."""
        if self.recompute == "none" or self.recompute_layers is None:
            return self.recompute
        return f"{self.recompute} on {self.layers_recomputed} of {sum(self.stage_layers)} layers"

    @property
    def layers_recomputed(self) -> int:
        """Of all stages together."""
        if self.recompute == "none":
            return 0
        most = self.recompute_layers
        return sum(layers if most is None else min(most, layers) for layers in self.stage_layers)

    @property
    def degrees_text(self) -> str:
        """The short form that `parse_layout` reads: dp2,pp1,tp4,sp8."""
        return ",".join(f"{axis}{degree}" for axis, degree in self.degrees.items())


def spread_layers(num_layers: int, pp: int) -> tuple[int, ...]:
    """Layers of each stage, as even as whole layers allow; contiguous, every layer exactly once.

    What is left over goes to the middle stages first, since the ends also carry the embedding and the
    head; then to the first stage; the last one, with the head's matmul, gets an extra layer last of all.
    The later middle stages come first: under 1F1B they keep fewer micro-batches.
    """
    share, left_over = divmod(num_layers, pp)
    order = [*range(pp - 2, 0, -1), 0, pp - 1]
    extra = set(order[:left_over])
    return tuple(share + (stage in extra) for stage in range(pp))


_ALIASES = {
    "mbs": "micro_batch_size",
    "zero": "zero_stage",
    "vpp": "num_virtual_stages",
    "ulysses": "ulysses_degree",
}
_SEPARATOR = re.compile(r"[\s,;*+\u00b7\u00d7]+|(?<=\d)[xX](?=[A-Za-z])")
_ITEM = re.compile(r"([A-Za-z_]+?)[=:]?(\d+)$|([A-Za-z_]+)[=:]([\w]+)$")


def parse_degrees(text: str) -> dict[str, Any]:
    """The fields in a short layout: `dp2,pp1,tp4,sp8`, `tp=4 mbs=2 zero=3`, `pp2,stage_layers=17,15`."""
    fields: dict[str, Any] = {}
    wrong: list[str] = []
    open_list = ""  # stage_layers=8,8,7 or mesh_order=pp,dp,sp,tp, whose next item this one may be
    for item in filter(None, _SEPARATOR.split(text.strip())):
        if (open_list == "stage_layers" and item.isdigit()) or (open_list == "mesh_order" and item in AXES):
            fields[open_list] += (int(item) if item.isdigit() else item,)
            continue
        match = _ITEM.match(item)
        open_list = ""
        if match is None:
            wrong.append(f"{item!r} is not a name with its value")
            continue
        name = (match[1] or match[3]).lower()
        name = _ALIASES.get(name, name)
        if name == "cp":
            wrong.append("cp (context parallelism) is called sp here")
        elif name not in Layout.model_fields:
            wrong.append(f"{name!r} is not a field of a layout")
        elif name in fields:
            wrong.append(f"{name} is given twice")
        elif name in ("stage_layers", "mesh_order"):
            open_list, fields[name] = name, (int(match[2]) if match[2] else match[4],)
        else:
            fields[name] = (
                int(match[2]) if match[2] else {"true": True, "false": False}.get(match[4], match[4])
            )
    if wrong or not fields:
        raise SeqplanError(
            f"cannot read the layout {text!r}: {'; '.join(wrong) or 'it is empty'}.",
            "Write it as dp2,pp1,tp4,sp8; an axis left out is 1; add mbs=2 or recompute=full as needed.",
        )
    return fields
