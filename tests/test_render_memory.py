"""Memory as it is printed: of one moment, gradients that may not exist yet, and no excess of zero."""

from __future__ import annotations

import pytest

from seqplan import profiles, render, render_choices, render_layout, render_memory
from seqplan.planner.question import Question
from seqplan.planner.results import ScoredLayout
from seqplan.planner.train_spec import TrainSpec
from tests import answers

GIB = answers.GIB


@pytest.fixture(scope="module")
def question() -> Question:
    return Question(
        model=profiles.load_model("bert-large")[0],
        cluster=profiles.load_cluster("dgx-h100"),
        gpus=16,
        train=TrainSpec(seq_len=512, global_batch_size=64, precision="bf16"),
        implementation=profiles.load_implementation("seqplan"),
    )


def without_gradients(scored: ScoredLayout) -> ScoredLayout:
    """Stage 0 is fullest before its first backward."""
    assert scored.memory is not None
    first, *others = scored.memory.stages
    first = first.model_copy(update={"by_kind": first.by_kind | {"gradients": 0.0}})
    memory = scored.memory.model_copy(update={"stages": (first, *others)})
    return scored.model_copy(update={"memory": memory})


def shown(scored: ScoredLayout, question: Question, capsys: pytest.CaptureFixture[str]) -> list[str]:
    render_layout.show_layout(scored, question)
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_the_moment_is_named(question: Question, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(answers.scored(), question, capsys)
    assert "Memory of stage 0, its fullest rank at the peak moment: 20.00 GiB" in lines
    assert "Memory of every stage s at its own peak moment, GiB (limit 76.00)" in lines
    assert not any("gradients 0.00" in line for line in lines)


def test_gradients_that_do_not_exist_yet_are_explained(
    question: Question, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(without_gradients(answers.scored()), question, capsys)
    title = "Memory of stage 0, its fullest rank at the peak moment (before its first backward): "
    assert any(line.startswith(title) for line in lines)
    assert "gradients (none yet) 0.0 MiB 0.0 %" in lines
    assert "gradients 0.00 1.00" in lines
    assert render_layout.NO_GRADIENTS in lines


@pytest.mark.parametrize(
    ("limit_gib", "said"),
    [
        (76.0, "56.00 GiB free"),
        (20.0 - 3 / 1024, "3.0 MiB too much"),
        (20.0 + 3 / 1024, "3.0 MiB free"),
        (20.0 - 1e-7, "< 0.1 MiB too much"),
    ],
)
def test_what_is_free_or_too_much_is_never_a_rounded_zero(limit_gib: float, said: str) -> None:
    assert render_memory.memory_line(answers.memory(limit_gib=limit_gib)).endswith(f", {said}")


def test_a_size_of_some_bytes_is_not_zero() -> None:
    assert [render.size(bytes_) for bytes_ in (0.0, 1.0, 0.06 * 2**20)] == ["0.0 MiB", "< 0.1 MiB", "0.1 MiB"]


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ((8, 8, 8, 8), "8"),
        ((7, 8, 8, 9), "7,8,8,9"),
        ((3, *[4] * 30, 3), "3, 30 x 4, 3"),
        ((*[8] * 15, 6), "15 x 8, 6"),
    ],
)
def test_the_layers_of_many_stages_in_few_words(layers: tuple[int, ...], said: str) -> None:
    assert render_choices.stage_layers(layers) == said
