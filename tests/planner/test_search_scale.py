"""The search at scale: grids give the scalar path's numbers, and what is pruned could not have won.

The worlds are small enough for a loop over every candidate, with every option that a trainer may have.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from seqplan.planner.choosing import beyond_trainer
from seqplan.planner.choosing.beyond_trainer import LEAST_GAIN, faster_elsewhere
from seqplan.planner.choosing.layout_grid import Grid, candidate_grids, candidate_tables
from seqplan.planner.choosing.layout_table import from_layout
from seqplan.planner.choosing.scan import scan
from seqplan.planner.layout import Layout
from seqplan.planner.layout_space import all_choices, trainer_choices
from seqplan.planner.memory.peak_memory import StageMemories, peak_memory
from seqplan.planner.memory_model import memory_estimate, memory_table
from seqplan.planner.question import Pins, Question
from seqplan.planner.rules.legality import sieve, verdict
from seqplan.planner.search import score, suggest
from seqplan.planner.time_model import time_table
from tests.planner.formula_cases import CAPABILITIES, our_trainer
from tests.planner.samples import cluster, decoder, encoder, question

RELATIVE = 1e-12
"""The issue's bound between the search and the score of one layout."""
PLAYED = 0.14
"""With as few micro-batches as here a closed form may be so far from the event simulation: most where stages
of unequal length are interleaved for one or two of them."""


def everything(model: Any = None, gpus: int = 8, *, memory_gib: float = 0.95, **changes: Any) -> Question:
    """A small model on nodes of two devices, and a trainer that can do all that a layout can say."""
    trainer = our_trainer()
    more: dict[str, Any] = {"partial_recompute": True, "ulysses": True, "interleaves_whole_groups": False}
    more["schedules"] = [*CAPABILITIES["schedules"], "zbh1", "zbh2"]
    capabilities = {**CAPABILITIES, **more, "vocab_multiple": 64}
    tuples: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in capabilities.items()
    }
    has = type(trainer.capabilities)(**tuples)
    sizes = {"hidden_size": 512, "ffn_hidden_size": 1536, "num_attention_heads": 8, "num_kv_heads": 4}
    return question(
        model or decoder(num_layers=4, vocab_size=32000, **sizes),
        gpus,
        seq_len=changes.pop("seq_len", 2048),
        global_batch_size=changes.pop("global_batch_size", 4),
        where=cluster(gpus_per_node=2, num_nodes=8, memory_gib=memory_gib),
        implementation=trainer.model_copy(update={"capabilities": has}),
        **changes,
    )


def small_encoder() -> Any:
    sizes = {"hidden_size": 256, "ffn_hidden_size": 1024, "num_attention_heads": 4, "num_kv_heads": 4}
    return encoder(num_layers=3, **sizes)


WORLDS = [
    everything(),
    everything(small_encoder(), 6, seq_len=384, global_batch_size=6, memory_gib=0.68),
    everything(gpus=4, seq_len=4096, memory_gib=1.5, headroom_fraction=0.1),
]
WORLD_IDS = ["decoder on 8", "encoder on 6", "decoder on 4, tight"]


@cache
def fitting(world: int, **pinned: Any) -> tuple[int, list[tuple[float, Layout]], list[bool]]:
    """Every legal layout that fits with its step time, in flat tables; how many are legal; and of each one
    whether a trainer that is LIMITED can cost, but not run it."""
    asked = WORLDS[world]
    found, elsewhere, legal = [], [], 0
    for table in candidate_tables(asked, Pins(**pinned), trainer_choices(asked)):
        standing = table.take(sieve(asked, table).runnable)
        legal += len(standing)
        if len(standing):
            fits = np.flatnonzero(memory_table(asked, standing, every_stage=True).fits)
            seconds = time_table(asked, standing).step_time_s
            found += [(float(seconds[row]), standing.row(int(row))) for row in fits]
            judged = sieve(limited(asked), standing)
            elsewhere += [bool(cell) for cell in (judged.costable & ~judged.runnable)[fits]]
    return legal, found, elsewhere


LIMITED: dict[str, Any] = {
    "recompute": ("none",),
    "schedules": ("none", "1f1b"),
    "zero_stages": (0, 3),
    "attention": ("none", "ring"),
    "hybrid_sharding": False,
    "partial_recompute": False,
    "ulysses": False,
}
"""A trainer that lacks much: what it cannot run is searched by bounds."""


def limited(asked: Question) -> Question:
    trainer = asked.implementation
    lacks = trainer.model_copy(update={"capabilities": trainer.capabilities.model_copy(update=LIMITED)})
    return asked.model_copy(update={"implementation": lacks})


def searched_s(asked: Question, layout: Layout) -> float:
    """Step time of one layout in the closed form that the search uses."""
    return float(time_table(asked, from_layout(layout, asked.train)).step_time_s[0])


@pytest.mark.parametrize("asked", WORLDS, ids=WORLD_IDS)
def test_the_grids_give_the_numbers_of_one_layout_at_a_time(asked: Question) -> None:
    """Peak of every stage and step time of random cells against `score` (memory_model, time_model)."""
    random = np.random.default_rng(0)
    compared = 0
    for grids, place in splits_of(asked):
        grid, shared = grids.in_split(grids.splits[place]), StageMemories(asked, grids.table)
        for layers in grids.splits[:place]:  # what another split has left behind is not in the way
            peak_memory(asked, grids.in_split(layers).table, shared)
        legal = np.broadcast_to(sieve(asked, grid.table).runnable & (grid.weight > 0), grid.table.shape)
        if not legal.any():
            continue
        memory, times = peak_memory(asked, grid.table, shared), time_table(asked, grid.table)
        seconds = np.broadcast_to(times.step_time_s, grid.table.shape)
        for cell in random.choice(np.flatnonzero(legal), 8):
            layout = grid.table.flat([cell]).row(0)
            one = score(asked, layout)
            assert one.memory is not None
            assert one.time is not None
            stages = {held.stage: held.allocated_bytes for held in one.memory.stages}
            for stage, allocated in zip(memory.stages, memory.stage_allocated, strict=True):
                assert allocated.flat[cell] == pytest.approx(stages[stage], rel=RELATIVE)
            assert memory.peak_bytes.flat[cell] == pytest.approx(one.memory.peak_bytes, rel=RELATIVE)
            assert bool(memory.fits.flat[cell]) == one.fits
            assert seconds.flat[cell] == pytest.approx(searched_s(asked, layout), rel=RELATIVE)
            # What is shown is the pipeline as it is played (test_event_simulation.py).
            assert seconds.flat[cell] == pytest.approx(one.time.step_time_s, rel=PLAYED)
            compared += 1
    assert compared > 80


def splits_of(asked: Question) -> list[tuple[Grid, int]]:
    """Every grid with the place of each of its splits of the layers."""
    grids = candidate_grids(asked, Pins(), trainer_choices(asked))
    return [(grid, place) for grid in grids for place in range(len(grid.splits))]


def without_twins(found: list[tuple[float, Layout]]) -> list[tuple[float, Layout]]:
    """The rule of ranking.py, as a loop: the first of equal time (6 digits), degrees and micro-batch."""
    kept: dict[tuple[Any, ...], tuple[float, Layout]] = {}
    for seconds, layout in found:
        key = (f"{seconds:.5e}", layout.micro_batch_size, *layout.degrees.values())
        kept.setdefault(key, (seconds, layout))
    return list(kept.values())


def dominated(layout: Layout, fits: dict[Any, list[tuple[int, str]]]) -> bool:
    """Whether the same with less recomputation fits."""
    layers, mode = recomputation(layout)
    others = fits[family(layout)]
    return any(number < layers and other in (mode, "none") for number, other in others)


def recomputation(layout: Layout) -> tuple[int, str]:
    if layout.recompute == "none":
        return 0, "none"
    count = max(layout.stage_layers) if layout.recompute_layers is None else layout.recompute_layers
    return count, layout.recompute


def family(layout: Layout) -> Any:
    return layout.model_copy(update={"recompute": "none", "recompute_layers": None})


PINNED: list[tuple[int, dict[str, Any]]] = [
    (0, {}),
    (1, {}),
    (2, {}),
    (2, {"recompute": "full"}),
    (1, {"tp": 1}),
]


@pytest.mark.parametrize(("world", "pinned"), PINNED, ids=[f"{WORLD_IDS[at]} {pins}" for at, pins in PINNED])
def test_the_leaders_are_those_of_a_loop_over_every_candidate(world: int, pinned: dict[str, Any]) -> None:
    asked, pins, top = WORLDS[world], Pins(**pinned), 12
    legal, found, _ = fitting(world, **pinned)
    answer = scan(asked, pins, replace(trainer_choices(asked), tight_splits=False), top)
    assert (answer.legal, answer.fitting) == (legal, len(found))
    assert 0 < len(found) < legal  # memory decides something
    fits: dict[Any, list[tuple[int, str]]] = {}
    for _, layout in found:
        fits.setdefault(family(layout), []).append(recomputation(layout))
    for mode in ("none", "selective", "full"):  # more recomputation of one kind is never faster
        by_family: dict[Any, list[tuple[int, float]]] = {}
        for seconds, layout in found:
            if recomputation(layout)[1] in ("none", mode):
                by_family.setdefault(family(layout), []).append((recomputation(layout)[0], seconds))
        for rows in by_family.values():
            ordered = [seconds for _, seconds in sorted(rows)]
            assert all(b >= a * (1 - RELATIVE) for a, b in itertools.pairwise(ordered))
    best = without_twins(sorted((each for each in found if not dominated(each[1], fits)), key=lambda x: x[0]))
    wanted = [float(f"{seconds:.5e}") for seconds, _ in best[:top]]
    times = [float(f"{searched_s(asked, layout):.5e}") for layout in answer.best]
    assert times == pytest.approx(wanted, rel=1e-5)
    assert len(set(answer.best)) == len(answer.best) == min(top, len(best))
    assert set(answer.best) <= {layout for _, layout in found}
    assert not any(dominated(layout, fits) for layout in answer.best)


def recomputes_for_nothing(question_: Question, layout: Layout) -> bool:
    """Selective recomputation that frees no byte: slower than none, and no smaller."""
    if layout.recompute != "selective":
        return False
    peaks = [
        max(s.allocated_bytes for s in memory_estimate(question_, each).stages)
        for each in (layout, family(layout))
    ]
    return peaks[0] >= peaks[1]


@pytest.mark.parametrize("world", range(len(WORLDS)), ids=WORLD_IDS)
def test_what_beats_the_pick_elsewhere_is_found_by_bounds(
    world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against every candidate of every trainer, for limits near the best, at the pick and far from it."""
    question_, top = limited(WORLDS[world]), 8
    pick = scan(question_, Pins(), trainer_choices(question_), top=1).best[0]
    _, every, elsewhere = fitting(world)
    space = candidate_tables(WORLDS[world], Pins(), all_choices(WORLDS[world]))
    pipelines = {(table.schedule, table.stage_layers) for table in space}
    found = [
        (seconds, layout)
        for (seconds, layout), other in zip(every, elsewhere, strict=True)
        if other and (layout.schedule, layout.stage_layers) in pipelines
    ]
    fits: dict[Any, list[tuple[int, str]]] = {}
    for _, layout in found:
        fits.setdefault(family(layout), []).append(recomputation(layout))
    for factor, between in ((0.9, 1), (1.0, 2), (1.0, 8), (1.5, 1)):
        monkeypatch.setattr(beyond_trainer, "BETWEEN", between)
        limit_s = searched_s(question_, pick) * factor
        faster = [
            (seconds, layout)
            for seconds, layout in sorted(found, key=lambda each: each[0])
            if seconds < limit_s * (1 - LEAST_GAIN) and not dominated(layout, fits)
            if not recomputes_for_nothing(question_, layout)
        ]
        wanted = [seconds for seconds, _ in without_twins(faster)[:top]]
        answer = faster_elsewhere(question_, Pins(), limit_s, top)
        times = [searched_s(question_, layout) for layout in answer]
        assert times == pytest.approx(wanted, rel=1e-5)
        assert wanted or factor <= 1
        assert not any(verdict(question_, layout).runnable for layout in answer)


def test_the_pick_is_runnable_and_what_beats_it_stands_apart() -> None:
    few = WORLDS[1].train.model_copy(update={"global_batch_size": 2})  # few micro-batches: long bubbles
    answer = suggest(limited(WORLDS[1]).model_copy(update={"train": few}), top=3)
    assert answer.pick is not None
    assert answer.pick.runnable
    assert answer.pick.time is not None
    assert answer.with_other_trainers
    for scored in answer.with_other_trainers:
        assert scored.fits
        assert not scored.runnable
        assert scored.reasons
        assert scored.time is not None
        assert scored.time.step_time_s < answer.pick.time.step_time_s


def test_an_order_of_axes_that_are_not_there_is_no_order() -> None:
    seen: set[tuple[Any, ...]] = set()
    pins = Pins(recompute="none", zero_stage=0)
    for table in candidate_tables(WORLDS[0], pins, trainer_choices(WORLDS[0])):
        for row in range(len(table)):
            layout = table.row(row)
            used = tuple(axis for axis in layout.mesh_order if layout.degrees[axis] > 1)
            key = (layout.model_copy(update={"mesh_order": ("pp", "dp", "sp", "tp")}), used)
            assert key not in seen
            seen.add(key)
    assert len({used for _, used in seen}) > 10


def test_counts_by_rule_add_up() -> None:
    answer = scan(WORLDS[0], Pins(), replace(trainer_choices(WORLDS[0]), tight_splits=False), top=1)
    assert answer.candidates == answer.fitting + sum(fell.count for fell in answer.rejected)
    tables = candidate_tables(WORLDS[0], Pins(), trainer_choices(WORLDS[0]))
    assert answer.candidates == sum(len(table) for table in tables)


def test_where_no_layout_has_so_many_gpus_a_rounder_number_is_told() -> None:
    """Eleven divides neither the batch nor a degree of the model."""
    asked = question(decoder(), 22, global_batch_size=8, implementation=our_trainer())
    (line,) = suggest(asked).would_fit
    assert line.startswith("16 of the 22 GPUs: dp")
