"""`suggest` where it has no pick: the reason in the headline, who could, and what was not written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seqplan import profiles
from tests.command_line import Seqplan, runner

LLAMA = [
    "llama3-8b",
    "--cluster",
    "dgx-h100",
    "--gpus",
    "16",
    "--seq-len",
    "4096",
    "--global-batch-size",
    "32",
]


@pytest.fixture
def seqplan(capsys: pytest.CaptureFixture[str]) -> Seqplan:
    return runner(capsys)


def have(field: str, value: object) -> list[str]:
    """The built-in trainers whose profile lists an option."""
    trainers = {name: profiles.load_implementation(name) for name in profiles.implementation_names()}
    return [name for name, trainer in trainers.items() if value in getattr(trainer.capabilities, field)]


@pytest.mark.parametrize(
    ("typed", "says", "field", "value"),
    [
        (["--precision", "fp8"], "seqplan has no precision=fp8; use fp32 or bf16.", "precisions", "fp8"),
        (["--optimizer", "adamw-8bit"], "seqplan has no optimizer=adamw-8bit; ", "optimizers", "adamw-8bit"),
        (["--gradient-bytes", "2"], "seqplan has no gradient_bytes=2; use 4.", "gradient_bytes", 2),
    ],
)
def test_the_headline_says_what_the_trainer_lacks_and_who_has_it(
    seqplan: Seqplan, tmp_path: Path, typed: list[str], says: str, field: str, value: object
) -> None:
    plan = tmp_path / "plan.yaml"
    done = seqplan("suggest", *LLAMA, *typed, "-o", str(plan))
    words = " ".join(done.out.split())
    assert f"No layout is legal: {says}" in words
    assert f"built-in trainers that can: {', '.join(have(field, value))} (--implementation)" in words
    assert done.status == 1
    assert done.err == f"not written, since no layout is legal: {plan}\n"
    assert not plan.exists()


def test_a_model_that_no_trainer_has(seqplan: Seqplan, tmp_path: Path) -> None:
    """Gemma 2 needs five things that ours lacks; sizes are made small, names are those of its config.json."""
    config = {"model_type": "gemma2", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4}
    config |= {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 1024}
    path = tmp_path / "gemma2" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(config))
    words = " ".join(seqplan("suggest", str(path), *LLAMA[1:]).out.split())
    assert "No layout is legal: seqplan cannot train gemma2: it does not have " in words
    assert " no other built-in trainer can " in words
    answer = json.loads(seqplan("suggest", str(path), *LLAMA[1:], "--json").out)
    assert [reason["rule"] for reason in answer["broken_by_all"]] == ["trainer_model"]
    assert answer["able_trainers"] == []


def test_tokens_without_a_pick_are_not_dropped_silently(seqplan: Seqplan) -> None:
    lacks = [*LLAMA, "--precision", "fp8", "--tokens", "15T"]
    large = ["llama3-405b", *LLAMA[1:], "--tokens", "15T"]
    for typed, why_not in ((lacks, "no layout is legal"), (large, "nothing fits")):
        says = f"--tokens: no days and GPU-hours of 15,000,000,000,000 tokens, since {why_not}"
        assert says in " ".join(seqplan("suggest", *typed).out.split())
        assert json.loads(seqplan("suggest", *typed, "--json").out)["job"] is None
