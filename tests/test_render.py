"""What is printed: rounding, tables that keep every column, plain text in a pipe, the JSON contract."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable

import pytest

from seqplan import profiles, render, render_layout, render_suggestion
from seqplan.planner.question import Question
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


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (render.gib(1.5 * GIB), "1.50"),
        (render.gib(99.99 * GIB), "99.99"),
        (render.gib(99.996 * GIB), "100.0"),
        (render.gib(12345.67 * GIB), "12,345.7"),
        (render.gib(-0.25 * GIB), "-0.25"),
        (render.size(1.5 * GIB), "1.50 GiB"),
        (render.size(0.0999 * GIB), "102.3 MiB"),
        (render.duration(4.2149), "4.21 s"),
        (render.duration(0.99951), "1.00 s"),
        (render.duration(0.0351), "35.1 ms"),
        (render.duration(412e-6), "412 us"),
        (render.duration(0.0), "0.00 us"),
        (render.duration(1240.4), "1,240 s"),
        (render.percent(0.4321), "43.2 %"),
        (render.count(70553706496), "70,553,706,496"),
        (render.plural(1, "node"), "1 node"),
        (render.plural(8, "node"), "8 nodes"),
    ],
)
def test_rounding(printed: str, expected: str) -> None:
    assert printed == expected


def printed(capsys: pytest.CaptureFixture[str], show: Callable[[], None]) -> list[str]:
    show()
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def row_starting(lines: list[str], start: str) -> str:
    found = [line for line in lines if " ".join(line.split()).startswith(start)]
    assert len(found) == 1, f"{start!r} begins {len(found)} lines"
    return " ".join(found[0].split())


@pytest.mark.parametrize("columns", [None, 40, 80, 100, 200])
def test_no_width_loses_a_column(
    columns: int | None,
    question: Question,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    wide = answers.scored(1240.0, dp=16, pp=128, tp=8, sp=64, micro_batch_size=16, recompute="selective")
    part = {"recompute_layers": 1, "stage_layers": (3,) * 128, "attention": "ring", "ulysses_degree": 16}
    partly = wide.model_copy(update={"layout": wide.layout.model_copy(update=part)})
    orders = partly.layout.model_copy(update={"mesh_order": ("sp", "pp", "dp", "tp")})
    elsewhere = (partly, partly.model_copy(update={"layout": orders}))
    answer = answers.suggestion().model_copy(update={"ranked": (answers.scored(), wide)})
    answer = answer.model_copy(update={"with_other_trainers": elsewhere, "pick": answers.scored(9999.0)})
    lines = printed(capsys, lambda: render_suggestion.show_suggestion(answer, question))
    heads = [" ".join(line.split()) for line in lines if " ".join(line.split()).startswith("dp pp tp")]
    assert heads[0] == "dp pp tp sp mb recompute zero attn peak GiB free step MFU"
    assert heads[1].removesuffix(" but") == f"{heads[0]} less"
    apart = "1 16 128 8 64 16 sel 128/384 0 ring u16 20.00 s0 56.00 1,240 s 43.2 % 87.6 %"
    assert row_starting(lines, "1 16 128") == apart
    assert row_starting(lines, "2 16 128 8 64 16 sel 128").startswith(apart.replace("1", "2", 1))
    assert "mesh order sp,pp,dp,tp" in " ".join(" ".join(lines).split())
    assert row_starting(lines, "1 2 2 4 1 1") == "1 2 2 4 1 1 none 0 plain 20.00 s0 56.00 4.00 s 43.2 %"
    assert (
        row_starting(lines, "2 16 128 8 64 16 selective")
        == "2 16 128 8 64 16 selective 0 plain 20.00 s0 56.00 1,240 s 43.2 %"
    )
    assert max(map(len, lines)) <= max(columns or render.PIPE_WIDTH, render.NARROWEST)


def test_a_pipe_gets_plain_text(question: Question, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, lambda: render_suggestion.show_suggestion(answers.suggestion(), question))
    assert not any("\x1b" in line for line in lines)


def test_brackets_are_text_not_markup(question: Question, capsys: pytest.CaptureFixture[str]) -> None:
    answer = answers.suggestion().model_copy(update={"notes": ("read [bold]models[/bold] :smile:",)})
    lines = printed(capsys, lambda: render_suggestion.show_suggestion(answer, question))
    assert "- read [bold]models[/bold] :smile:" in [line.strip() for line in lines]


def test_suggestion_says_what_was_asked_why_and_what_fell(
    question: Question, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(capsys, lambda: render_suggestion.show_suggestion(answers.suggestion(), question))
    assert lines[0] == "bert-large on 16 x " + question.cluster.device.name + " of dgx-h100 (2 nodes)"
    assert lines[1] == "64 sequences of 512 tokens a step, bf16, trainer seqplan"
    assert "Pick: dp2 pp2 tp4 sp1" in lines
    assert "  memory 20.00 of 76.00 GiB on stage 0, 56.00 GiB free (the fullest rank)" in lines
    # The rival takes 5 s against 4 s; of its 1 s more the ring takes 1.5 s and compute gives back 0.5 s.
    rival = "dp1 pp2 tp4 sp2 takes 25.0 % longer: sp +1.50 s, compute -500 ms"
    assert f"  why: the fastest of 250 layouts that fit; {rival}" in lines
    # 10 of 20 GiB are activations: half a bar of 24 cells.
    assert row_starting(lines, "activations") == "activations 10.00 GiB 50.0 % " + 12 * "\u2588"
    assert row_starting(lines, "fragmentation").startswith("fragmentation (overhead) 1.00 GiB 5.0 %")
    assert row_starting(lines, "3,000 tp_heads").endswith("tp=3 does not divide 16 heads")
    assert "4,321 candidates, 1,000 legal, 250 fit; what fell:" in lines
    assert " - sp=2 crosses a node" in lines
    assert " - vocabulary padded from 50257 to 50304" in lines


def test_rows_that_look_alike_say_how_they_differ(
    question: Question, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    ranked = (
        answers.scored(4.0),
        answers.scored(4.4, tp_sequence_parallel=True, zero_shard_size=2),
        answers.scored(5.0, zero_stage=3),
    )
    answer = answers.suggestion().model_copy(update={"ranked": ranked})
    lines = printed(capsys, lambda: render_suggestion.show_suggestion(answer, question))
    assert row_starting(lines, "2 2 2 4 1 1").endswith("43.2 % zero shard size 2, tp sequence parallel on")
    assert row_starting(lines, "3 2 2 4 1 1 none 3").endswith("43.2 %"), "its zero stage is in the table"
    # No other degrees among them: the runner-up is compared by its choices.
    alike = "the same with zero shard size 2, tp sequence parallel on takes 10.0 % longer: compute +400 ms"
    assert f"  why: the fastest of 250 layouts that fit; {alike}" in lines


def test_nothing_fits_names_stage_kind_and_excess(
    question: Question, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(capsys, lambda: render_suggestion.show_suggestion(answers.nothing(), question))
    assert "Nothing fits: none of 1,000 legal layouts stays below 15.20 GiB." in lines
    # 20 GiB needed, 15.2 there.
    assert (
        "  stage 0 needs 20.00 GiB, 4.80 GiB too much; its largest part is activations with 10.00 GiB"
        in lines
    )
    assert " - recompute full: 14.1 GiB" in lines
    assert not any(line.startswith(("Pick", "Best")) for line in lines)


def test_explain_shows_every_stage(question: Question, capsys: pytest.CaptureFixture[str]) -> None:
    scored = answers.scored()
    lines = printed(capsys, lambda: render_layout.show_layout(scored, question, ("a note",)))
    assert row_starting(lines, "activations 10.00 5.00") == "activations 10.00 5.00"
    assert row_starting(lines, "allocated") == "allocated 18.00 13.00"
    assert row_starting(lines, "peak") == "peak 20.00 15.00"
    assert "  each dp rank: 32 sequences a step, as 32 micro-batches of 1" in lines
    assert "Time of a step: 4.00 s (a stage waits 12.5 % of it in the pipeline)" in lines
    assert " - a note" in lines


def test_a_deep_pipeline_is_shown_in_pieces(
    question: Question, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    deep = answers.scored(pp=20, stage_layers=(1,) * 20)
    deep = deep.model_copy(update={"memory": answers.memory(tuple(150.0 - stage for stage in range(20)))})
    lines = printed(capsys, lambda: render_layout.show_layout(deep, question))
    heads = [line.split() for line in lines if line.strip().startswith("s")]
    assert [name for head in heads for name in head if name[1:].isdigit()] == [f"s{n}" for n in range(20)]
    assert sum(line.startswith("activations  ") for line in lines) == 3


def test_an_illegal_layout_shows_every_reason(question: Question, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, lambda: render_layout.show_layout(answers.illegal(), question))
    assert "  not legal: 2 broken rules" in lines
    assert " - tp_heads: tp=3 does not divide num_attention_heads=16; use 1, 2, 4, 8 or 16." in lines
    assert " - sp_seq_len: seq_len=1000 is not a multiple of 16; use 992 or 1008." in lines


def test_bars_in_an_ascii_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    render.show([render.bars("Memory", [("weights", 3.0, "3 GiB"), ("rest", 1.0, "1 GiB")], 4.0)])
    output.seek(0)
    lines = [line.rstrip() for line in output.read().splitlines()]
    assert lines[1].split() == ["weights", "3", "GiB", "75.0", "%", "#" * 18]


def test_json_keeps_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    render.show_json(answers.suggestion())
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "seqplan-json/1"
    # DESIGN's contract: these keys stay.
    top = "pick ranked candidates legal fitting rejected would_fit elapsed_s with_other_trainers"
    assert set(top.split()) <= set(answer)
    assert set(answer["rejected"][0]) == {"rule", "count", "example"}
    render.show_json(answers.scored())
    scored = json.loads(capsys.readouterr().out)
    assert scored["schema"] == "seqplan-json/1"
    assert {"layout", "legal", "fits", "runnable", "reasons", "memory", "time"} <= set(scored)
    fields = """dp pp tp sp micro_batch_size attention kernel schedule num_virtual_stages recompute
        recompute_layers zero_stage zero_shard_size precision tp_sequence_parallel mesh_order stage_layers
            ulysses_degree"""
    assert set(scored["layout"]) == set(fields.split())
    memory = scored["memory"]
    assert {"allocated_bytes", "overhead_bytes", "peak_bytes", "limit_bytes", "worst_stage", "stages"} <= set(
        memory
    )
    kinds = "weights gradients optimizer activations attention logits ring_buffers comm_buffers transient"
    assert set(memory["stages"][0]["by_kind"]) == set(kinds.split())
    assert {"step_time_s", "tokens_per_s_per_gpu", "mfu", "by_kind"} <= set(scored["time"])
    causes = "compute recompute tp sp pp dp bubble optimizer"
    assert set(scored["time"]["by_kind"]) == set(causes.split())
    assert memory["peak_bytes"] == 20 * GIB, "bytes are not rounded"
