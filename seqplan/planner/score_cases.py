"""`score`: many cases at once, one JSON object a line in and out; a bad case is an error of its own.

Models, clusters and trainers are read once. Cases are taken in blocks; those of a block that share model,
devices, sequence length and pipeline become rows of one LayoutTable, so thousands cost little more than
one. Answers come in the order of the cases.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

from pydantic import BaseModel

from seqplan.planner.choosing.layout_table import from_layouts, num_microbatches, pipeline_key
from seqplan.planner.cluster_spec import ClusterSpec
from seqplan.planner.errors import SeqplanError
from seqplan.planner.estimates import memory_estimates, time_estimates
from seqplan.planner.implementation import ImplementationSpec
from seqplan.planner.layout import Layout, parse_degrees
from seqplan.planner.layout_defaults import complete_layout
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.question import Question
from seqplan.planner.reading.read_json import noting
from seqplan.planner.results import JSON_SCHEMA, MemoryEstimate, TimeEstimate
from seqplan.planner.rules.legality import verdict
from seqplan.planner.search import scored_layout
from seqplan.planner.train_spec import TrainSpec
from seqplan.planner.validation import validate_spec

BLOCK = 4096
"""Cases that are read before the first of them is answered."""

CASE_KEYS = ("id", "model", "cluster", "gpus", "train", "layout", "implementation")
NEEDED_LAYOUT = ("dp", "pp", "tp", "sp", "micro_batch_size")

EXAMPLE_TRAIN = '"train": {"seq_len": 4096, "global_batch_size": 64}'
EXAMPLE_LAYOUT = "dp1,pp1,tp2,sp4,micro_batch_size=1"
EXAMPLE = (
    '{"id": 1, "model": "llama3-8b", "cluster": "dgx-h100", "gpus": 8, '
    f'{EXAMPLE_TRAIN}, "layout": "{EXAMPLE_LAYOUT}"}}'
)
"""One line of input, as the help and the README show it."""


@dataclass(frozen=True)
class Loaders:
    """How names become specs. The planner does not know the profiles; the command line hands these in."""

    model: Callable[[str], ModelSpec]
    hf_config: Callable[[Mapping[str, Any]], ModelSpec]
    cluster: Callable[[str], ClusterSpec]
    implementation: Callable[[str], ImplementationSpec]


@dataclass(frozen=True)
class _Case:
    """One readable case."""

    place: int
    id: Any
    question: Question
    layout: Layout
    notes: tuple[str, ...]


class _Reader:
    """Lines to cases; what was read once is kept."""

    def __init__(self, loaders: Loaders) -> None:
        self.loaders = loaders
        self.kept: dict[tuple[str, str], Any] = {}

    def case(self, place: int, data: Mapping[str, Any]) -> _Case:
        missing = [key for key in CASE_KEYS[1:] if key not in data and key != "implementation"]
        unknown = [key for key in data if key not in CASE_KEYS]
        if missing or unknown:
            problems = [f"missing {', '.join(missing)}"] * bool(missing)
            problems += [f"unknown key {', '.join(unknown)}"] * bool(unknown)
            raise SeqplanError(f"case: {'; '.join(problems)}.", _hint(unknown))
        asked = {key: value for key, value in data.items() if key not in ("id", "layout")}
        question = self._keep("question", asked, self._question)
        given, notes = data["layout"], _read_as(data["train"], question.train)
        if isinstance(given, str):  # as `explain --layout` takes it: what is left out has its default
            layout = complete_layout(question, parse_degrees(given))
            return _Case(place, data.get("id"), question, layout, notes)
        absent = [key for key in NEEDED_LAYOUT if not isinstance(given, dict) or given.get(key) is None]
        if absent:
            raise SeqplanError(
                f"layout: missing {', '.join(absent)}.",
                f"The other fields have defaults; or write {EXAMPLE_LAYOUT!r}.",
            )
        return _Case(place, data.get("id"), question, complete_layout(question, given), notes)

    def _question(self, data: Mapping[str, Any]) -> Question:
        gpus = data["gpus"]
        if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 1:
            raise SeqplanError(f"gpus = {gpus!r} must be a whole number from 1.")
        return Question(
            model=self._keep("model", data["model"], self._model),
            cluster=self._keep("cluster", data["cluster"], self._cluster),
            gpus=gpus,
            train=self._keep("train", data["train"], self._train),
            implementation=self._keep("trainer", data.get("implementation") or "seqplan", self._trainer),
        )

    def _keep(self, kind: str, raw: Any, read: Callable[[Any], Any]) -> Any:
        key = (kind, json.dumps(raw, sort_keys=True))
        if key not in self.kept:
            try:
                self.kept[key] = read(raw)
            except SeqplanError as error:
                self.kept[key] = error
        found = self.kept[key]
        if isinstance(found, SeqplanError):
            raise found
        return found

    def _model(self, raw: Any) -> ModelSpec:
        if isinstance(raw, str):
            return self.loaders.model(raw)
        if isinstance(raw, dict) and set(raw) == {"hf_config"} and isinstance(raw["hf_config"], dict):
            return self.loaders.hf_config(raw["hf_config"])
        return _spec(ModelSpec, raw, "model", "a name, a path, {hf_config: {...}} or the fields of a model")

    def _cluster(self, raw: Any) -> ClusterSpec:
        if isinstance(raw, str):
            return self.loaders.cluster(raw)
        return _spec(ClusterSpec, raw, "cluster", "a name, a path or the fields of a cluster")

    def _train(self, raw: Any) -> TrainSpec:
        return _spec(TrainSpec, raw, "train", "an object with seq_len, global_batch_size, ...")

    def _trainer(self, raw: Any) -> ImplementationSpec:
        if not isinstance(raw, str):
            raise SeqplanError(f"implementation = {raw!r} must be a name.")
        return self.loaders.implementation(raw)


_Model = TypeVar("_Model", bound=BaseModel)


def _spec(spec: type[_Model], raw: Any, where: str, wanted: str) -> _Model:
    if not isinstance(raw, dict):
        raise SeqplanError(f"{where}: must be {wanted}.")
    return validate_spec(spec, raw, where)


def _read_as(raw: Mapping[str, Any], train: TrainSpec) -> tuple[str, ...]:
    """What counts with a suffix are taken for: 32k is 32768, and some mean 32000."""
    counts = {"seq_len": train.seq_len, "global_batch_size": train.global_batch_size}
    return tuple(
        f"{key} {raw[key]} is read as {read}" for key, read in counts.items() if isinstance(raw[key], str)
    )


def _hint(unknown: list[str]) -> str:
    """What a case has; where a key of an inner object stands at the top, where it belongs."""
    hint = f"A case has {', '.join(CASE_KEYS)}."
    if set(unknown) & set(TrainSpec.model_fields):
        hint += f" `train` is an object: {EXAMPLE_TRAIN}."
    if set(unknown) & set(Layout.model_fields):
        hint += f' `layout` is an object or text: "layout": "{EXAMPLE_LAYOUT}".'
    return hint


def score_cases(lines: Iterable[str], loaders: Loaders) -> Iterator[dict[str, Any]]:
    """One answer for each line that is not blank, in their order."""
    reader = _Reader(loaders)
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    while block := list(islice(numbered, BLOCK)):
        yield from _score_block(reader, block)


def _score_block(reader: _Reader, block: list[tuple[int, str]]) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = [{} for _ in block]
    groups: dict[tuple[Any, ...], list[_Case]] = {}
    for place, (number, line) in enumerate(block):
        case_id: Any = None
        try:
            repeated: list[str] = []
            data = _parse(number, line, repeated)
            case_id = _id(data, number)
            if repeated:
                raise SeqplanError(f"case: given twice: {', '.join(repeated)}.", "Keep one of each.")
            case = reader.case(place, data)
        except SeqplanError as error:
            answers[place] = _error(case_id, number, error)
            continue
        groups.setdefault(_group_key(case), []).append(case)
    for cases in groups.values():
        for case, answer in zip(cases, _score_group(cases), strict=True):
            said = {"notes": list(case.notes)} if case.notes else {}
            answers[case.place] = {"schema": JSON_SCHEMA, "id": case.id, **said, **answer}
    return answers


def _parse(number: int, line: str, repeated: list[str]) -> dict[str, Any]:
    try:
        data = json.loads(
            line.removeprefix("\ufeff"),  # the byte-order mark that some editors write
            object_pairs_hook=noting(repeated),
        )
    except (ValueError, RecursionError) as error:
        raise SeqplanError(f"line {number}: not JSON: {error}.", f"A case is {EXAMPLE}") from None
    if not isinstance(data, dict):
        raise SeqplanError(f"line {number}: a case is a JSON object, not {type(data).__name__}.")
    return data


def _id(data: Mapping[str, Any], number: int) -> Any:
    """The case's id, which the answer repeats: so it has to be JSON, which has no NaN and no Infinity."""
    try:
        json.dumps(data.get("id"), allow_nan=False)
    except ValueError:
        raise SeqplanError(
            f"line {number}: id = {data['id']!r} is not a JSON value.", "Give a number, text or null."
        ) from None
    return data.get("id")


def _error(case_id: Any, line: int, error: SeqplanError) -> dict[str, Any]:
    told = {"message": error.message, "hint": error.hint}
    return {"schema": JSON_SCHEMA, "id": case_id, "line": line, "error": told}


def _group_key(case: _Case) -> tuple[Any, ...]:
    """What must be equal for cases to be rows of one table: all that the formulas read as plain numbers."""
    asked, train = case.question, case.question.train
    nodes = min(asked.gpus, asked.cluster.gpus_per_node + 1)  # how full one node is, or more than one node
    numerics = train.model_copy(update={"global_batch_size": 1})
    specs = (id(asked.model), id(asked.cluster), id(asked.implementation))
    return (*specs, nodes, numerics.model_dump_json(), *pipeline_key(case.layout))


def _score_group(cases: list[_Case]) -> list[dict[str, Any]]:
    verdicts = [verdict(case.question, case.layout) for case in cases]
    known = [case for case, found in zip(cases, verdicts, strict=True) if found.costable]
    estimates = iter(_estimates(known)) if known else iter(())
    answers = []
    for case, found in zip(cases, verdicts, strict=True):
        memory, time = next(estimates) if found.costable else (None, None)
        scored = scored_layout(case.question, case.layout, found, memory, time)
        answers.append(scored.model_dump(mode="json"))
    return answers


def _estimates(cases: list[_Case]) -> list[tuple[MemoryEstimate, TimeEstimate]]:
    """Memory and time of the costable cases of one group, as rows of one table."""
    asked = [case.question for case in cases]
    table = from_layouts([case.layout for case in cases], asked[0].train)
    batches = [question.train.global_batch_size for question in asked]
    table = replace(table, num_microbatches=num_microbatches(batches, table.dp, table.micro_batch_size))
    times = time_estimates(asked[0], table, asked)
    return list(zip(memory_estimates(asked[0], table), times, strict=True))
