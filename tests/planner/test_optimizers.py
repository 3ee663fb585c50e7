"""Optimizer variants and gradient bytes: bytes a parameter on a rank, and who may run them."""

from __future__ import annotations

from typing import Any

import pytest

from seqplan import profiles
from seqplan.planner.memory_model import memory_estimate
from seqplan.planner.question import Question
from seqplan.planner.rules.legality import verdict
from seqplan.planner.train_spec import TrainSpec
from tests.planner.formula_cases import decoder, layout

ROUNDED = 2e-3
"""Relative: rows of a shard are rounded up."""


def ask(trainer: str, **train: Any) -> Question:
    spec = TrainSpec(seq_len=2048, global_batch_size=8, **{"precision": "bf16", **train})
    return Question(
        model=decoder(hidden_size=512, vocab_size=1024),
        cluster=profiles.load_cluster("dgx-h100"),
        gpus=8,
        train=spec,
        implementation=profiles.load_implementation(trainer),
    )


# Bytes a parameter beside the fp32 weight: two moments of 4, 2 or 1 byte (the last with an fp32 scale for a
# block of 256), or one fp32 momentum.
MOMENTS = {"adamw": 8.0, "adamw-bf16": 4.0, "adamw-8bit": 2.03125, "sgd": 4.0}


@pytest.mark.parametrize(("optimizer", "moment_bytes"), MOMENTS.items())
def test_moments_under_full_sharding(optimizer: str, moment_bytes: float) -> None:
    question = ask("torchtitan", optimizer=optimizer)
    stage = memory_estimate(question, layout(question, dp=8, zero_stage=3)).stages[0]
    parameters = question.model.parameters()
    assert stage.by_kind["optimizer"] == pytest.approx(moment_bytes * parameters / 8, rel=ROUNDED)


def test_adafactor_keeps_rows_and_columns() -> None:
    question = ask("torchtitan", optimizer="adafactor")
    stage = memory_estimate(question, layout(question, dp=8, zero_stage=3)).stages[0]
    sums = 0
    for tensor in question.model.parameter_tensors():
        layers = question.model.num_layers if tensor.place == "layer" else 1
        sums += layers * sum(tensor.shape)
    assert stage.by_kind["optimizer"] == pytest.approx(4 * sums, rel=1e-12)


@pytest.mark.parametrize("gradient_bytes", [2, 4])
def test_gradient_buffers(gradient_bytes: int) -> None:
    """NeMo's 8B run (README of dgxc-benchmarking): 2 + 2 + 12 / N bytes a parameter with bf16 gradients."""
    question = ask("megatron-core", gradient_bytes=gradient_bytes)
    stage = memory_estimate(question, layout(question, dp=8, zero_stage=1)).stages[0]
    model = question.model
    placeholders = 2 * sum(t.elements for t in model.parameter_tensors() if t.place == "layer")
    expected = gradient_bytes * model.parameters() + placeholders
    assert stage.by_kind["gradients"] == pytest.approx(expected, rel=1e-12)


REFUSED = [
    ("seqplan", {"optimizer": "sgd"}, "seqplan has no optimizer=sgd; use adamw."),
    ("nanotron", {"optimizer": "adafactor"}, "nanotron has no optimizer=adafactor; use adamw."),
    ("seqplan", {"gradient_bytes": 2}, "seqplan has no gradient_bytes=2; use 4."),
]


@pytest.mark.parametrize(("trainer", "train", "message"), REFUSED, ids=[text for *_, text in REFUSED])
def test_a_trainer_says_what_it_has(trainer: str, train: dict[str, Any], message: str) -> None:
    question = ask(trainer, **train)
    found = verdict(question, layout(question, dp=8))
    assert any(reason.message.startswith(message) for reason in found.reasons)
    assert not found.runnable
    assert found.legal
    assert not found.costable, "its tensors are those of another option"
