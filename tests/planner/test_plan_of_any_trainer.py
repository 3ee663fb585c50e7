"""A plan is read whichever trainer it is for: the trainer without limits has all that any shipped one has."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqplan import profiles
from seqplan.planner.plan import _ANY_TRAINER, load_plan, make_plan, save_plan
from seqplan.planner.search import score
from tests.planner.formula_cases import layout, our_trainer
from tests.planner.samples import cluster, decoder, question

LESS_IS_MORE = ("min_microbatches_per_stage", "interleaves_whole_groups", "vocab_multiple")
"""What a trainer needs, not what it has."""
A_DEFAULT = ("stage_balance", "searches_recompute_layers", "model_features")
"""What it does where nobody says; features of models are listed whole (model_features.py)."""


@pytest.mark.parametrize("name", profiles.implementation_names())
def test_it_has_what_any_trainer_has(name: str) -> None:
    has, whole = profiles.load_implementation(name).capabilities, _ANY_TRAINER.capabilities
    for field in type(has).model_fields:
        own, all_ = getattr(has, field), getattr(whole, field)
        if field in A_DEFAULT:
            continue
        if field in LESS_IS_MORE:
            assert all_ <= max(own, 1), field
        elif isinstance(own, tuple):
            assert set(own) <= set(all_), field
        else:
            assert own <= all_, field


def test_a_plan_with_some_of_its_layers_recomputed_is_read(tmp_path: Path) -> None:
    asked = question(decoder(num_layers=12), 4, where=cluster(), implementation=our_trainer())
    chosen = layout(asked, pp=2, dp=2, zero_stage=2, recompute="full", recompute_layers=2)
    path = tmp_path / "plan.yaml"
    save_plan(make_plan(asked, score(asked, chosen)), path)
    assert load_plan(path).layout == chosen
