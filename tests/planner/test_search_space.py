"""The space of the search, field by field, against nested loops over every value: nothing missing or twice.

Each case frees a few fields and pins the others, so that the loops over every value that a field may have
stay short; the scalar rules say which layouts are allowed. Two layouts that differ in an option without
effect are the same one, by the rules that `same` spells out once more.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from seqplan.planner.choosing.layout_grid import candidate_tables
from seqplan.planner.layout import Layout
from seqplan.planner.layout_space import SENSIBLE_ORDERS, trainer_choices
from seqplan.planner.memory_model import memory_estimate
from seqplan.planner.question import Pins, Question
from seqplan.planner.rules.legality import reasons
from seqplan.planner.time_model import time_estimate
from tests.planner.samples import decoder
from tests.planner.test_search_scale import everything

RELATIVE = 1e-12


def asked(num_layers: int = 4, vocab_size: int = 1000, gpus: int = 4, memory_gib: float = 3.0) -> Question:
    """A small model on nodes of two devices for a trainer that has every option."""
    sizes = {"hidden_size": 512, "ffn_hidden_size": 1536, "num_attention_heads": 8, "num_kv_heads": 4}
    model = decoder(num_layers=num_layers, vocab_size=vocab_size, **sizes)
    return everything(model, gpus, memory_gib=memory_gib, global_batch_size=8)


VALUES: dict[str, tuple[Any, ...]] = {
    "micro_batch_size": tuple(range(1, 9)),
    "attention": ("none", "ring", "rsa", "ulysses"),
    "ulysses_degree": (1, 2, 3, 4, 8),
    "schedule": ("none", "1f1b", "interleaved", "gpipe", "zbh1", "zbh2", "zbv"),
    "num_virtual_stages": (1, 2, 3, 4),
    "recompute": ("none", "selective", "full"),
    "recompute_layers": (None, 0, 1, 2, 3, 4),
    "zero_stage": (0, 1, 2, 3),
    "zero_shard_size": (None, 1, 2, 3, 4),
    "tp_sequence_parallel": (False, True),
    "mesh_order": SENSIBLE_ORDERS,
}
FIXED: dict[str, Any] = {
    "micro_batch_size": 1,
    "recompute": "none",
    "zero_stage": 0,
    "tp_sequence_parallel": False,
    "mesh_order": SENSIBLE_ORDERS[0],
}
DEGREES = [
    dict(zip(("dp", "pp", "tp", "sp"), degrees, strict=True))
    for degrees in itertools.product((1, 2, 4), repeat=4)
    if degrees[0] * degrees[1] * degrees[2] * degrees[3] == 4
]


def every_layout(question: Question, free: tuple[str, ...]) -> Iterator[Layout]:
    """All values of the free fields, the others as they are pinned, on even stages; what the rules allow."""
    num_layers = question.model.num_layers
    for degrees, values in itertools.product(DEGREES, itertools.product(*(VALUES[name] for name in free))):
        fields = {**FIXED, **dict(zip(free, values, strict=True)), **degrees}
        pp, sp = degrees["pp"], degrees["sp"]
        fields.setdefault("schedule", "none" if pp == 1 else "1f1b")
        fields.setdefault("attention", "none" if sp == 1 else "ring")
        fields["kernel"] = "math" if fields["attention"] == "rsa" else "flash"
        stages = (num_layers // pp,) * pp
        layout = Layout(precision="bf16", stage_layers=stages, **fields)
        # On one rank rsa is plain attention with its scores in memory: for dropped probabilities only.
        dropped = sp == 1 and layout.attention == "rsa"
        # The largest chunk sets the pace, so only chunks of equal length are worth a try.
        unequal = stages[0] % layout.num_virtual_stages
        if not (dropped or unequal or reasons(question, layout)):
            yield layout


def same(layout: Layout) -> Layout:
    """What the layout does, without what has no effect."""
    changes: dict[str, Any] = {}
    ranks, longest = layout.dp * layout.sp, max(layout.stage_layers)
    layers = 0 if layout.recompute == "none" else layout.recompute_layers
    if layers == 0:
        changes |= {"recompute": "none", "recompute_layers": None}
    elif layers == longest:
        changes["recompute_layers"] = None
    shard = layout.zero_shard_size or ranks
    if layout.zero_stage == 0 or shard == 1:
        changes |= {"zero_stage": 0, "zero_shard_size": None}
    elif shard == ranks:
        changes["zero_shard_size"] = None
    if layout.sp == 1:
        changes["attention"] = "none" if layout.attention in ("ring", "ulysses") else layout.attention
    used = tuple(axis for axis in layout.mesh_order if layout.degrees[axis] > 1)
    changes["mesh_order"] = used + tuple(axis for axis in SENSIBLE_ORDERS[0] if axis not in used)
    return layout.model_copy(update=changes)


CASES: dict[str, tuple[str, ...]] = {
    "attention": ("attention", "ulysses_degree", "mesh_order"),
    "batch and tp": ("micro_batch_size", "tp_sequence_parallel", "mesh_order"),
    "schedule": ("schedule", "num_virtual_stages", "micro_batch_size"),
    "recompute and sharding": ("recompute", "recompute_layers", "zero_stage", "zero_shard_size"),
}


@pytest.mark.parametrize("free", CASES.values(), ids=CASES)
def test_the_candidates_are_all_layouts_that_differ_in_effect(free: tuple[str, ...]) -> None:
    question = asked()
    pinned = {name: value for name, value in FIXED.items() if name not in free}
    if "schedule" in free:
        pinned["sp"] = 1
    found = [
        table.row(row)
        for table in candidate_tables(question, Pins(**pinned), trainer_choices(question))
        for row in range(len(table))
        if len(set(table.stage_layers)) == 1
    ]
    found = [layout for layout in found if not reasons(question, layout)]
    if "attention" not in free:
        found = [each for each in found if each.attention in ("none", "ring") and each.ulysses_degree == 1]
    if "schedule" not in free:
        found = [each for each in found if each.schedule in ("none", "1f1b")]
    wanted: dict[Layout, Layout] = {}
    for layout in every_layout(question, free):
        if "schedule" not in free or layout.sp == 1:
            wanted.setdefault(same(layout), layout)
    once = [same(layout) for layout in found]
    assert len(set(once)) == len(once)
    assert set(once) == set(wanted)
    assert len(once) > 20
    for layout in found[:: len(found) // 15]:  # the same in effect has the same numbers
        other = wanted[same(layout)]
        held, step = memory_estimate(question, layout), time_estimate(question, layout)
        assert memory_estimate(question, other).peak_bytes == pytest.approx(held.peak_bytes, rel=RELATIVE)
        assert time_estimate(question, other).step_time_s == pytest.approx(step.step_time_s, rel=RELATIVE)
