"""How the search lays layers on stages, against every split of a small model.

The search tries a few splits only; here the best of all of them is looked for as well, layout by layout.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from seqplan import profiles
from seqplan.planner.choosing.scan import scan
from seqplan.planner.choosing.tight_splits import tight_splits
from seqplan.planner.layout_space import head_layers, stage_splits, trainer_choices
from seqplan.planner.question import Pins, Question
from seqplan.planner.search import score
from seqplan.planner.train_spec import TrainSpec
from tests.planner.samples import cluster, decoder
from tests.planner.test_search_scale import everything, searched_s

RELATIVE = 1e-9
NEAR = 0.005
"""In tight memory, where the best split is one of very many."""


def asked(num_layers: int, gpus: int, vocab_size: int, memory_gib: float) -> Question:
    """Layers of 512 with a head of vocab_size, for a trainer with 1F1B and all recomputation."""
    sizes = {"hidden_size": 512, "ffn_hidden_size": 1536, "num_attention_heads": 8, "num_kv_heads": 4}
    model = decoder(num_layers=num_layers, vocab_size=vocab_size, **sizes)
    found = everything(model, gpus, memory_gib=memory_gib, global_batch_size=8)
    lacks = {"hybrid_sharding": False, "ulysses": False, "schedules": ("none", "1f1b"), "zero_stages": (0, 1)}
    has = found.implementation.capabilities.model_copy(update=lacks)
    trainer = found.implementation.model_copy(update={"capabilities": has})
    return found.model_copy(update={"implementation": trainer})


def every_split(num_layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    for cuts in itertools.combinations(range(1, num_layers), stages - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *cuts, num_layers)))


def best_s(question: Question, pins: Pins) -> float:
    best = scan(question, pins, trainer_choices(question), 1).best
    step = score(question, best[0]).time if best else None
    return step.step_time_s if step is not None else float("inf")


CASES = {
    "light head, memory to spare": ((6, 4, 1000, 3.0), 4),
    "light head, little memory": ((6, 4, 1000, 0.7), 2),
    "a head of four layers": ((6, 4, 32000, 3.0), 2),
    "the same on four stages": ((7, 4, 32000, 1.4), 4),
    "a head of twelve layers": ((6, 4, 100000, 3.0), 2),
}


@pytest.mark.parametrize(("sizes", "pp"), CASES.values(), ids=CASES)
def test_no_other_split_is_faster(sizes: tuple[int, int, int, float], pp: int) -> None:
    question = asked(*sizes)
    all_of_them = (
        best_s(question, Pins(pp=pp, sp=1, stage_layers=split)) for split in every_split(sizes[0], pp)
    )
    assert best_s(question, Pins(pp=pp, sp=1)) == pytest.approx(min(all_of_them), rel=RELATIVE)


TIGHT: dict[str, tuple[tuple[int, int, int, int], str, range]] = {
    "seqplan": ((11, 4, 4096, 8), "seqplan", range(4200, 8000, 900)),
    "megatron-core": ((9, 3, 2048, 6), "megatron-core", range(4800, 6800, 400)),
}
"""Layers, stages, tokens and batch; a trainer; MiB of a device: nothing fits, to nothing recomputed."""


@pytest.mark.parametrize(("sizes", "trainer", "limits"), TIGHT.values(), ids=TIGHT)
def test_in_tight_memory_no_other_split_is_faster_and_none_fits_alone(
    sizes: tuple[int, int, int, int], trainer: str, limits: range
) -> None:
    num_layers, pp = sizes[:2]
    fitted, recomputed, shorter = set(), set(), 0
    for mebibytes in limits:
        question = in_tight_memory(sizes, trainer, mebibytes)
        choices = trainer_choices(question)
        best = scan(question, Pins(pp=pp), choices, 1).best
        every = (
            scan(question, Pins(pp=pp, stage_layers=split), choices, 1).best
            for split in every_split(num_layers, pp)
            if max(split) - min(split) <= 4
        )
        seconds = [searched_s(question, found[0]) for found in every if found]
        fitted.add(bool(best))
        assert bool(best) == bool(seconds)
        if best:
            assert searched_s(question, best[0]) <= min(seconds) * (1 + NEAR)
            recomputed.add(best[0].recompute)
            first, *middle, _ = best[0].stage_layers
            shorter += first < max(middle)
    assert fitted == {False, True}
    assert recomputed == {"none", "full"}
    assert shorter


def in_tight_memory(sizes: tuple[int, int, int, int], trainer: str, mebibytes: int) -> Question:
    """One device a node, so that each stage has a network of its own."""
    num_layers, pp, seq_len, batch = sizes
    widths = {"hidden_size": 2048, "ffn_hidden_size": 5632, "num_attention_heads": 16, "num_kv_heads": 4}
    return Question(
        model=decoder(num_layers=num_layers, vocab_size=50000, **widths),
        cluster=cluster(gpus_per_node=1, num_nodes=pp, memory_gib=mebibytes / 1024),
        gpus=pp,
        train=TrainSpec(seq_len=seq_len, global_batch_size=batch),
        implementation=profiles.load_implementation(trainer),
    )


def test_splits_for_tight_memory_hold_every_layer_once_and_are_others() -> None:
    questions = [asked(num_layers, 8, size, 3.0) for num_layers in (1, 5, 12, 19) for size in (1000, 128256)]
    for question, pp in itertools.product(questions, range(1, 21)):
        splits = tight_splits(question, pp, Pins())
        assert len(set(splits)) == len(splits)
        assert not set(splits) & set(stage_splits(question, pp, Pins()))
        for split in splits:
            assert len(split) == pp
            assert sum(split) == question.model.num_layers
            assert min(split) >= 1


def test_an_uneven_split_can_be_the_pick() -> None:
    question = asked(6, 4, 32000, 3.0)
    assert 3 < head_layers(question) < 5
    (best,) = scan(question, Pins(pp=2), trainer_choices(question), 1).best
    assert best.stage_layers == (5, 1)


def test_splits_hold_every_layer_once_and_come_once() -> None:
    questions = [asked(num_layers, 8, size, 3.0) for num_layers in (1, 5, 12, 19) for size in (1000, 128256)]
    for question, pp in itertools.product(questions, range(1, 21)):
        num_layers, splits = question.model.num_layers, stage_splits(question, pp, Pins())
        assert len(set(splits)) == len(splits)
        assert len(splits) == 1 or pp > 1
        for split in splits if pp <= num_layers else ():
            assert len(split) == pp
            assert sum(split) == num_layers
            assert min(split) >= 1
