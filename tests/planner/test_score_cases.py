"""`score`: many cases at once give the answers of one at a time, and a bad one does not stop the rest."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest

from seqplan.planner.errors import SeqplanError
from seqplan.planner.question import Question
from seqplan.planner.results import MemoryEstimate, TimeEstimate
from seqplan.planner.score_cases import Loaders, score_cases
from seqplan.planner.search import score
from seqplan.planner.train_spec import TrainSpec
from tests.planner.formula_cases import our_trainer
from tests.planner.samples import cluster, decoder, encoder, gpt2, layout, old_cluster, trainer

MODELS = {"llama": decoder(name="llama"), "bert": encoder(name="bert"), "gpt2": gpt2()}
CLUSTERS = {"new": cluster(), "old": old_cluster()}
TRAINERS = {"seqplan": our_trainer(), "other": trainer()}


def named(kind: str, known: Mapping[str, Any], name: str) -> Any:
    if name not in known:
        raise SeqplanError(f"no {kind} is called {name}.", "See the list.")
    return known[name]


LOADERS = Loaders(
    model=lambda name: named("model", MODELS, name),
    hf_config=lambda config: gpt2(num_layers=config["n_layer"]),
    cluster=lambda name: named("cluster", CLUSTERS, name),
    implementation=lambda name: named("implementation", TRAINERS, name),
)


def case(number: int = 0, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "id": number,
        "model": "llama",
        "cluster": "new",
        "gpus": 8,
        "train": {"seq_len": 4096, "global_batch_size": 64},
        "layout": {"dp": 2, "pp": 1, "tp": 2, "sp": 2, "micro_batch_size": 1},
        "implementation": "seqplan",
    }
    return {**base, **changes}


def answers(*cases: Any) -> list[dict[str, Any]]:
    lines = [each if isinstance(each, str) else json.dumps(each) for each in cases]
    return list(score_cases(lines, LOADERS))


def many(count: int) -> list[dict[str, Any]]:
    """Cases that differ in everything: the first `count` of a product of choices."""
    degrees: list[Any] = [(1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 32), (1, 2, 4), (1, 2)]
    options: list[Any] = [("none", "full"), (0, 3), (512, 4096), (64, 128, 256), MODELS, CLUSTERS]
    cases = []
    for number, choice in enumerate(itertools.islice(itertools.product(*degrees, *options), count)):
        dp, pp, tp, sp, micro, recompute, zero, seq_len, batch, model, where = choice
        split = {"dp": dp, "pp": pp, "tp": tp, "sp": sp, "micro_batch_size": micro}
        cases.append(
            case(
                number,
                model=model,
                cluster=where,
                gpus=dp * pp * tp * sp,
                train={"seq_len": seq_len, "global_batch_size": batch},
                layout={**split, "recompute": recompute, "zero_stage": zero},
            )
        )
    return cases


def same(left: Any, right: Any) -> bool:
    """Equal but for the last bits of floats."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return left == pytest.approx(right, rel=1e-9, abs=1e-9)
    return bool(left == right)


def test_many_cases_give_the_answers_of_one_at_a_time() -> None:
    cases = many(27_000)[::137]
    found = answers(*cases)
    assert len({json.dumps(answer["layout"]) for answer in found}) > 50
    assert {answer["legal"] for answer in found} == {True, False}
    assert {answer["fits"] for answer in found} == {True, False}
    for each, answer in zip(cases, found, strict=True):
        assert answer.pop("id") == each["id"]
        assert answer.pop("schema") == "seqplan-json/1"
        asked = Question(
            model=MODELS[each["model"]],
            cluster=CLUSTERS[each["cluster"]],
            gpus=each["gpus"],
            train=TrainSpec(**each["train"]),
            implementation=our_trainer(),
        )
        alone = score(asked, layout(asked, **each["layout"]))
        assert same(answer, json.loads(json.dumps(alone.model_dump(mode="json"))))


def test_an_answer_has_the_keys_of_the_contract() -> None:
    (answer,) = answers(case(7))
    assert answer["id"] == 7
    assert {"schema", "layout", "legal", "fits", "runnable", "reasons", "memory", "time"} <= set(answer)
    memory, step = answer["memory"], answer["time"]
    assert set(MemoryEstimate.model_fields) == set(memory)
    assert set(TimeEstimate.model_fields) == set(step)
    for stage in memory["stages"]:
        assert sum(stage["by_kind"].values()) == pytest.approx(stage["allocated_bytes"])
        assert stage["allocated_bytes"] + stage["overhead_bytes"] == pytest.approx(stage["peak_bytes"])
    assert sum(step["by_kind"].values()) == pytest.approx(step["step_time_s"])
    assert answer["layout"]["attention"] == "ring"
    assert answer["layout"]["stage_layers"] == [32]


def test_a_model_may_be_given_in_four_ways() -> None:
    fields = MODELS["gpt2"].model_dump(mode="json")
    train = {"seq_len": 1024, "global_batch_size": 64}
    found = answers(
        case(model="gpt2", train=train),
        case(model={"hf_config": {"n_layer": 12}}, train=train),
        case(model=fields, train=train),
        case(model={"hf_config": {"n_layer": 12}}, train=train, implementation=None),
    )
    assert same(found[0], found[1])
    assert same(found[0], found[2])
    assert same(found[0], found[3])


@pytest.mark.parametrize(("typed", "read"), [("4k", 4096), ("4K", 4096), ("1m", 2**20), ("1_024k", 2**20)])
def test_counts_as_flags_take_them(typed: str, read: int) -> None:
    train = {"seq_len": read, "global_batch_size": 64}
    plain, short = answers(case(train=train), case(train={**train, "seq_len": typed}))
    assert short.pop("notes") == [f"seq_len {typed} is read as {read}"]
    assert same(plain, short)
    (batch,) = answers(case(train={"seq_len": 4096, "global_batch_size": "1k"}))
    assert batch["notes"] == ["global_batch_size 1k is read as 1024"]


BAD: list[tuple[Any, str]] = [
    ("{", "line 2: not JSON"),
    ("[1]", "line 2: a case is a JSON object, not list"),
    ({"id": 5}, "case: missing model, cluster, gpus, train, layout"),
    (case(5, typo=1), "unknown key typo"),
    (case(5, model="nobody"), "no model is called nobody"),
    (case(5, model=["llama"]), "model: must be a name, a path"),
    (case(5, model={"name": "x"}), "missing "),
    (case(5, cluster="nowhere"), "no cluster is called nowhere"),
    (case(5, implementation="nothing"), "no implementation is called nothing"),
    (case(5, gpus=0), "gpus = 0 must be a whole number from 1"),
    (case(5, gpus=True), "gpus = True must be a whole number from 1"),
    (case(5, gpus=10**30), "gpus=1000000000000000000000000000000 is more than"),
    (case(5, train={"seq_len": 0, "global_batch_size": 1}), "seq_len = 0 must be at least 1"),
    (case(5, train={"seq_len": "4 kB", "global_batch_size": 1}), 'seq_len = "4 kB" is text; write a whole'),
    (case(5, train={"seq_len": "4096", "global_batch_size": 1}), "without quotes, or one with k or M (4k is"),
    (case(5, train={"seq_len": 64, "global_batch_size": "0k"}), "global_batch_size = 0 must be at least 1"),
    (case(5, train=[]), "train: must be an object"),
    (case(5, layout={"dp": 8}), "layout: missing pp, tp, sp, micro_batch_size"),
    (case(5, layout=8), "layout: missing dp"),
    (case(5, layout={**case()["layout"], "cp": 1}), "layout has no field 'cp'"),
    (case(5, layout={**case()["layout"], "dp": "2"}), 'dp = "2" must be a whole number'),
    (case(5, layout={**case()["layout"], "dp": 10**30}), "must be at most"),
    (case(5, layout={**case()["layout"], "pp": -1}), "pp = -1 must be at least 1"),
    (case(5, layout={**case()["layout"], "recompute": "half"}), 'recompute = "half" must be one of'),
]


@pytest.mark.parametrize(("bad", "says"), BAD, ids=[says for _, says in BAD])
def test_a_bad_case_is_an_error_of_its_own(bad: Any, says: str) -> None:
    before, broken, after = answers(case(1), bad, case(3))
    assert (before["id"], after["id"]) == (1, 3)
    assert before["legal"]
    assert same(before["memory"], after["memory"])
    assert set(broken) == {"schema", "id", "line", "error"}
    assert broken["line"] == 2
    assert broken["id"] == (bad.get("id") if isinstance(bad, dict) else None)
    assert says in broken["error"]["message"]


NOT_JSON = [
    # The line, the id that its answer has, and what it says.
    ('{"id": NaN}', None, "line 1: id = nan is not a JSON value."),
    ('{"id": [1, -Infinity]}', None, "line 1: id = [1, -inf] is not a JSON value."),
    ('{"id": 1e999}', None, "line 1: id = inf is not a JSON value."),
    ('{"id": 4, "gpus": 8, "gpus": 16}', 4, "case: given twice: gpus (8 and 16)."),
    ('{"id": 4, "train": {"seq_len": 1, "seq_len": 2}}', 4, "case: given twice: seq_len (1 and 2)."),
]


@pytest.mark.parametrize(("line", "case_id", "says"), NOT_JSON)
def test_what_json_has_not_is_refused(line: str, case_id: Any, says: str) -> None:
    (answer,) = score_cases([line], LOADERS)
    assert answer["error"]["message"] == says
    assert answer["error"]["hint"]
    assert answer["id"] == case_id
    json.dumps(answer, allow_nan=False)


def test_a_zero_stage_that_the_trainer_lacks_has_no_estimate() -> None:
    (known, unknown) = answers(case(1), case(2, layout={**case()["layout"], "zero_stage": 1}))
    assert known["memory"] is not None
    assert (unknown["legal"], unknown["fits"], unknown["memory"], unknown["time"]) == (
        True,
        False,
        None,
        None,
    )
    assert "seqplan has no zero_stage=1" in unknown["reasons"][0]["message"]


def test_a_byte_order_mark_is_no_part_of_a_case() -> None:
    (answer,) = answers("\ufeff" + json.dumps(case(4)))
    assert answer["id"] == 4
    assert answer["legal"]


def test_an_illegal_layout_is_an_answer_not_an_error() -> None:
    (answer,) = answers(case(layout={"dp": 3, "pp": 64, "tp": 3, "sp": 1, "micro_batch_size": 1}))
    assert not answer["legal"]
    assert answer["memory"] is None
    rules = {reason["rule"] for reason in answer["reasons"]}
    assert {"world_size", "tp_heads", "pp_layers", "batch"} <= rules


def test_blank_lines_are_no_cases_and_order_is_kept_over_blocks() -> None:
    layouts = [{**case()["layout"], "dp": dp} for dp in (1, 2)]
    cases = [json.dumps(case(number, layout=layouts[number % 2])) for number in range(5000)]
    found = list(score_cases(["", *cases, "  "], LOADERS))
    assert [answer["id"] for answer in found] == list(range(5000))
    assert [answer["legal"] for answer in found[:4]] == [False, True, False, True]


def test_ten_thousand_cases() -> None:
    # How fast: benchmarks/commands.py.
    found = list(score_cases([json.dumps(each) for each in many(10_000)], LOADERS))
    assert len(found) == 10_000
    assert not any("error" in answer for answer in found)
