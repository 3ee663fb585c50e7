"""The plan file: written whole, read back equal, and nothing in it trusted."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from seqplan import __version__
from seqplan.planner.errors import SeqplanError
from seqplan.planner.implementation import ImplementationSpec
from seqplan.planner.plan import (
    Plan,
    check_output_path,
    load_plan,
    make_plan,
    plan_text,
    plan_warnings,
    save_plan,
)
from seqplan.planner.question import Question
from seqplan.planner.search import score
from tests.planner.formula_cases import our_trainer
from tests.planner.samples import encoder, gpt2, layout, question


def load_ours(name: str) -> ImplementationSpec:
    assert name == "seqplan"
    return our_trainer()


def asked(gpus: int = 4, **changes: Any) -> Question:
    """BERT-base's sizes (12 layers, 768, 12 heads: arXiv 1810.04805)."""
    model = encoder(name="bert", num_layers=12, hidden_size=768, ffn_hidden_size=3072, **_twelve_heads())
    given = {"seq_len": 512, "global_batch_size": 32, **changes}
    return question(model, gpus, implementation=our_trainer(), **given)


def _twelve_heads() -> dict[str, int]:
    return {"num_attention_heads": 12, "num_kv_heads": 12}


def made(**fields: Any) -> Plan:
    given = asked()
    return make_plan(given, score(given, layout(given, **(fields or {"dp": 2, "pp": 2}))))


ABSENT = object()

FLAT: dict[str, Any] = {"pp": 1, "schedule": "none", "stage_layers": [12]}


def write(folder: Path, changes: dict[str, Any]) -> Path:
    """A plan file with some values changed by hand."""
    data = yaml.safe_load(plan_text(made()))
    merge(data, changes)
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def merge(data: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict):
            merge(data[key], value)
        elif value is ABSENT:
            del data[key]
        else:
            data[key] = value


def test_a_plan_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    plan = made(dp=1, pp=2, sp=2, recompute="full", recompute_layers=3, stage_layers=[5, 7])
    path = tmp_path / "plan.yaml"
    save_plan(plan, path)
    again = load_plan(path, load_ours)
    assert again == plan
    assert plan_warnings(again, our_trainer()) == ()
    assert os.listdir(tmp_path) == ["plan.yaml"]


def test_a_plan_is_complete_and_readable() -> None:
    text = plan_text(made())
    data = yaml.safe_load(text)
    assert data["schema"] == "seqplan/1"
    assert set(data) == {
        *("schema", "model", "cluster", "gpus", "train", "layout", "implementation", "estimate", "provenance")
    }
    assert data["layout"]["stage_layers"] == [6, 6]
    assert data["layout"]["mesh_order"] == ["pp", "dp", "sp", "tp"]
    assert [stage["stage"] for stage in data["estimate"]["memory"]["stages"]] == [0, 1]
    assert data["estimate"]["time"]["mfu"] > 0
    assert data["provenance"]["seqplan_version"] == __version__
    inputs = data["provenance"]["inputs"]
    assert [inputs[kind].split(" sha256:")[0] for kind in inputs] == ["bert", "sample cluster", "seqplan"]
    assert all(len(text.split("sha256:")[1]) == 64 for text in inputs.values())
    assert "stage_layers: [6, 6]" in text  # on one line, so that a person can read it
    for trap in ("&", "!!python", "<<:"):
        assert trap not in text


FAULTS: list[tuple[str, dict[str, Any], list[str]]] = [
    # What is wrong, what is changed in a good plan (ABSENT: taken out), fragments of the error.
    (
        "degrees whose product is not the world",
        {"gpus": 16, "layout": {**FLAT, "dp": 2, "tp": 2, "sp": 2}},
        ["dp=2 x pp=1 x tp=2 x sp=2 needs 8 GPUs, not 16"],
    ),
    (
        "four times the ranks that there are",
        {"gpus": 8, "layout": {**FLAT, "dp": 16, "tp": 2}},
        ["needs 32 GPUs, not 8"],
    ),
    (
        "a sequence that does not divide",
        {"layout": {**FLAT, "dp": 1, "tp": 2, "sp": 2, "attention": "ring"}, "train": {"seq_len": 399}},
        ["seq_len=399 is not a multiple of 2", "398 and 400"],
    ),
    (
        "more stages than layers",
        {"gpus": 16, "layout": {"dp": 1, "pp": 16, "stage_layers": [1] * 16}},
        ["16 stages for 12 layers"],
    ),
    (
        "fewer micro-batches than stages",
        {
            "gpus": 8,
            "layout": {"dp": 2, "pp": 4, "micro_batch_size": 4, "stage_layers": [3, 3, 3, 3]},
            "train": {"global_batch_size": 8},
        },
        ["num_microbatches=1", "less than pp=4", "micro_batch_size=1"],
    ),
    (
        "a newer format",
        {"schema": "seqplan/99"},
        ["written by a newer seqplan (schema seqplan/99; this one reads seqplan/1)"],
    ),
    ("an unknown format", {"schema": "hf/2"}, ["schema is 'hf/2', not seqplan/1"]),
    ("no format", {"schema": ABSENT}, ["no `schema`: not a plan"]),
    ("an unknown key", {"layout": {"ep": 2}}, ["unknown key layout.ep"]),
    ("a missing key", {"layout": {"tp": ABSENT}}, ["missing layout.tp"]),
    ("text for a number", {"layout": {"dp": "two"}}, ['layout.dp = "two" must be a whole number']),
    ("a truth value for a number", {"layout": {"dp": True}}, ["layout.dp = true must be a whole number"]),
    (
        "a length that is no count",
        {"train": {"seq_len": "1x"}},
        ['train.seq_len = "1x" is text; write a whole number without quotes, or one with k or M'],
    ),
    ("lost layers", {"layout": {"stage_layers": [6, 5]}}, ["6+5 (2 stages, 11 layers)"]),
    ("a ZeRO stage that the trainer lacks", {"layout": {"zero_stage": 1}}, ["seqplan has no zero_stage=1"]),
    (
        "two faults at once",
        {"layout": {"tp": 5}, "train": {"global_batch_size": 7}},
        ["tp=5 does not divide num_attention_heads=12", "global_batch_size=7"],
    ),
]


@pytest.mark.parametrize(("change", "says"), [case[1:] for case in FAULTS], ids=[case[0] for case in FAULTS])
def test_a_faulty_plan_is_refused_with_file_and_reason(
    change: dict[str, Any], says: list[str], tmp_path: Path
) -> None:
    path = write(tmp_path, change)
    with pytest.raises(SeqplanError) as caught:
        load_plan(path, load_ours)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    for fragment in says:
        assert fragment in caught.value.message


def test_an_edited_plan_takes_counts_as_the_flags_do(tmp_path: Path) -> None:
    plan = load_plan(write(tmp_path, {"train": {"seq_len": "1k", "global_batch_size": "1K"}}))
    assert (plan.train.seq_len, plan.train.global_batch_size) == (1024, 1024)


@pytest.mark.parametrize("text", ["", "# a comment only\n", "\n\n"])
def test_an_empty_plan(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(SeqplanError, match="empty"):
        load_plan(path)


def test_tags_and_aliases_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("schema: seqplan/1\nlayout: !!python/tuple [1, 2]\n")
    with pytest.raises(SeqplanError, match="tags"):
        load_plan(path)
    path.write_text("a: &a [1]\nb: *a\n")
    with pytest.raises(SeqplanError, match="anchors"):
        load_plan(path)


def test_without_a_trainer_only_what_no_trainer_could_do_is_refused(tmp_path: Path) -> None:
    """The ranks of a run read the plan again, and know no profiles."""
    path = write(tmp_path, {"layout": {"zero_stage": 1}})
    assert load_plan(path).layout.zero_stage == 1
    path = write(tmp_path, {"layout": {"tp": 5}})
    with pytest.raises(SeqplanError, match="needs 20 GPUs, not 4"):
        load_plan(path)


def test_a_trainer_that_is_not_built_in_is_told_with_the_file(tmp_path: Path) -> None:
    def refuse(name: str) -> ImplementationSpec:
        raise SeqplanError(f"implementation = {name} is not built in.")

    path = write(tmp_path, {"implementation": "foo"})
    with pytest.raises(SeqplanError) as caught:
        load_plan(path, refuse)
    assert caught.value.message == f"{path}: implementation = foo is not built in."


def test_a_run_refuses_positions_that_were_never_learned(tmp_path: Path) -> None:
    given = question(gpt2(), 4, seq_len=2048, global_batch_size=8, implementation=our_trainer())
    plan = make_plan(given, score(given, layout(given, dp=4)))
    save_plan(plan, tmp_path / "plan.yaml")
    with pytest.raises(SeqplanError, match="beyond the 1024 learned positions"):
        load_plan(tmp_path / "plan.yaml", load_ours)


def test_another_estimate_or_another_model_is_told(tmp_path: Path) -> None:
    changes = {"estimate": {"memory": {"peak_bytes": 1e9}}, "model": {"vocab_size": 30000}}
    plan = load_plan(write(tmp_path, changes), load_ours)
    found = plan_warnings(plan, our_trainer())
    assert any(text.startswith("the model is not the one") for text in found)
    assert any("peak memory" in text for text in found)
    assert not any(text.startswith("the cluster") for text in found)


def test_a_place_that_cannot_be_written_is_known_before_the_search(tmp_path: Path) -> None:
    with pytest.raises(SeqplanError, match="does not exist"):
        check_output_path(tmp_path / "missing" / "plan.yaml")
    with pytest.raises(SeqplanError, match="is a folder"):
        check_output_path(tmp_path)
    with pytest.raises(SeqplanError, match="not a regular file"):
        check_output_path(Path(os.devnull))  # a rename onto it would take the device away
    check_output_path(tmp_path / "plan.yaml")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(SeqplanError, match="is not writable"):
        check_output_path(tmp_path / "plan.yaml")


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.yaml"
    save_plan(made(), path)
    before = path.read_text()

    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_plan(made(dp=4), path)
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["plan.yaml"]


def test_two_writers_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    plans = [made(), made(dp=4)]
    seen: list[str] = []

    def repeat(plan: Plan) -> None:
        for _ in range(5):
            save_plan(plan, path)
            seen.append(path.read_text())

    threads = [threading.Thread(target=repeat, args=(plan,)) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    whole = {plan_text(plan) for plan in plans}
    assert len(seen) == 10
    assert set(seen) <= whole
    assert os.listdir(tmp_path) == ["plan.yaml"]
