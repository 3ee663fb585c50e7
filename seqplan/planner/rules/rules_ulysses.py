"""Rules about heads split over sp: neighbours in sp exchange tokens for heads (all-to-all) before attention.

With ulysses_degree u every u neighbours hold all tokens of their part of the sequence and 1/u of the heads
(DeepSpeed-Ulysses, arXiv 2309.14509); a ring goes over the sp / u such groups (USP, arXiv 2405.07719). u = sp
leaves no ring and is attention=ulysses. K and V are copied where u exceeds the kv heads, and the copies are
counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seqplan.planner.choosing.layout_table import Bools, LayoutTable
from seqplan.planner.layout import Layout
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.question import Question
from seqplan.planner.reading.integers import divisors, listed
from seqplan.planner.rules.rule import Rule


def splits_heads(model: ModelSpec, tp: Any, degree: Any) -> Any:
    """Whether `degree` ranks can share a tp rank's heads, and its kv heads or copies of them."""
    heads, kv_heads = model.num_attention_heads // tp, np.maximum(model.num_kv_heads // tp, 1)
    whole = (heads > 0) & (heads % degree == 0)
    return whole & ((kv_heads % degree == 0) | (degree % kv_heads == 0))


def _degree_broken(question: Question, table: LayoutTable) -> Bools:
    degree, ring = table.ulysses_degree, table.is_attention("ring")
    pure, split, whole = table.is_attention("ulysses"), degree > 1, degree == table.sp
    wrong: Bools = (table.sp % degree != 0) | (pure & ~whole) | (split & np.where(ring, whole, ~pure))
    return wrong


def _degree(question: Question, layout: Layout) -> str:
    degree, sp = layout.ulysses_degree, layout.sp
    start = f"ulysses_degree={degree} with attention={layout.attention} and sp={sp}"
    if layout.attention == "ulysses":
        return f"{start}: all of sp split the heads there; set ulysses_degree={sp}, or attention=ring."
    if layout.attention == "ring" and degree == sp:
        return f"{start} leaves no ring; set attention=ulysses, or a smaller ulysses_degree."
    if layout.attention == "ring":
        return f"{start}: it must divide sp; use {listed(divisors(sp)[:-1] or (1,))}."
    return f"{start}: only a ring goes with it; set attention=ring, or ulysses_degree=1."


def _heads_broken(question: Question, table: LayoutTable) -> Bools:
    wrong: Bools = ~np.asarray(splits_heads(question.model, table.tp, table.ulysses_degree))
    return wrong & (table.ulysses_degree > 1)


def _heads(question: Question, layout: Layout) -> str:
    model, tp = question.model, layout.tp
    good = [degree for degree in divisors(layout.sp) if bool(splits_heads(model, tp, degree))]
    heads = f"{model.num_attention_heads // tp} heads of a tp rank"
    return (
        f"ulysses_degree={layout.ulysses_degree} does not divide the {heads} "
        f"(num_attention_heads={model.num_attention_heads} / tp={tp}), or neither divides nor is a multiple "
        f"of its kv heads (num_kv_heads={model.num_kv_heads}); use {listed(good or [1])}."
    )


def _trainer_broken(question: Question, table: LayoutTable) -> Bools | bool:
    if question.implementation.capabilities.ulysses:
        return False
    wrong: Bools = table.ulysses_degree > 1
    return wrong


def _trainer(question: Question, layout: Layout) -> str:
    name, degree = question.implementation.name, layout.ulysses_degree
    return f"{name} does not split heads over sp, as ulysses_degree={degree} asks; use 1."


RULES: tuple[Rule, ...] = (
    Rule("ulysses_degree", "layout", _degree_broken, _degree),
    Rule("ulysses_heads", "layout", _heads_broken, _heads),
    Rule("trainer_ulysses", "trainer", _trainer_broken, _trainer),
)
