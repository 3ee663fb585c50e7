"""Layout: how one training job is split; how one is written down in short, and which defaults complete it.

A layout may be illegal: legality.py says why, with every number, so the constructor checks types only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from seqplan.planner.errors import SeqplanError
from seqplan.planner.spec import Spec

if TYPE_CHECKING:  # these modules import this one
    from seqplan.planner.model_spec import ModelSpec
    from seqplan.planner.question import Question

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


def default_stage_layers(model: ModelSpec, pp: int, balance: StageBalance = "layers") -> tuple[int, ...]:
    """Layers of each stage where the user says none; pp is at most the number of layers."""
    return spread_matmuls(model, pp) if balance == "matmuls" else spread_layers(model.num_layers, pp)


def spread_matmuls(model: ModelSpec, pp: int) -> tuple[int, ...]:
    """Layers of each stage as nanotron places them (models/base.py): equal shares of the matmuls' weights.

    The head counts, so the last stages have fewer layers, or none; the layer that passes a share still
    belongs to it. kv heads count as many as heads.
    """
    layer = 4 * model.attention_size * model.hidden_size + 3 * model.ffn_hidden_size * model.hidden_size
    whole = model.num_layers * layer + model.vocab_size * model.hidden_size
    stages, stage = [0] * pp, 0
    for number in range(1, model.num_layers + 1):
        stages[stage] += 1
        stage += number * layer * pp > whole * (stage + 1)
    return tuple(stages)


def best_kernel(question: Question, precision: str, attention: str) -> Kernel:
    """The best attention kernel that device and trainer have for dtype and head; rsa has its own matmuls."""
    has = question.implementation.capabilities.kernels
    usable = question.cluster.device.kernels(precision, question.model.head_dim)
    found = () if attention == "rsa" else tuple(kernel for kernel in usable if kernel in has)
    return found[0] if found else "math"


def complete_layout(question: Question, given: Mapping[str, Any]) -> Layout:
    """A Layout from the fields that the user gave; each absent one takes its default.

    micro_batch_size is 1 where absent: it divides every batch, and gives a pipeline the most micro-batches.
    zero_stage is the least that the trainer has.
    """
    unknown = [name for name in given if name not in Layout.model_fields]
    if unknown:
        fields = ", ".join(Layout.model_fields)
        raise SeqplanError(
            f"layout has no field {', '.join(map(repr, unknown))}.", f"The fields are {fields}."
        )
    fields_ = {name: value for name, value in given.items() if value is not None}
    for axis in AXES:
        fields_.setdefault(axis, 1)
    pp, sp = fields_["pp"], fields_["sp"]
    dropout = question.train.attention_dropout > 0 and "rsa" in question.implementation.capabilities.attention
    fields_.setdefault("micro_batch_size", 1)
    fields_.setdefault("zero_stage", min(question.implementation.capabilities.zero_stages))
    fields_.setdefault("attention", "rsa" if dropout else "none" if sp == 1 else "ring")
    fields_.setdefault("ulysses_degree", sp if fields_["attention"] == "ulysses" else 1)
    fields_.setdefault("schedule", "none" if pp == 1 else "1f1b")
    fields_.setdefault("precision", question.precision)
    if "stage_layers" not in fields_:
        stages = min(pp, question.model.num_layers) if isinstance(pp, int) and pp >= 1 else 1
        balance = question.implementation.capabilities.stage_balance
        fields_["stage_layers"] = default_stage_layers(question.model, stages, balance)
    fields_.setdefault("kernel", best_kernel(question, fields_["precision"], fields_["attention"]))
    return layout_from_fields(fields_)


def layout_from_fields(fields: Mapping[str, Any]) -> Layout:
    """A Layout from plain values, as JSON or YAML give them; all wrong fields are named at once."""
    from seqplan.planner.validation import validate_spec  # pays for yaml; `--help` imports this module

    return validate_spec(Layout, fields, "layout")


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


def parse_layout(text: str, question: Question, pins: Mapping[str, Any] | None = None) -> Layout:
    """A complete layout from its short form and the fields pinned by flags; the two must not disagree."""
    fields = parse_degrees(text)
    for name, value in (pins or {}).items():
        if value is None:
            continue
        if name in fields and fields[name] != value:
            raise SeqplanError(
                f"--layout says {name}={fields[name]} and --{name.replace('_', '-')} says {value}.",
                "Give it once.",
            )
        fields[name] = value
    return complete_layout(question, fields)
