"""Plan: the versioned YAML that the planner writes and the runtime reads; nothing else is needed.

Loading trusts nothing: keys, types, the product of the degrees and every rule of legality are checked again,
and the estimate in the file is compared with what this version computes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import Field

from seqplan import __version__
from seqplan.planner.choosing.placement import placement_lines
from seqplan.planner.choosing.scan import memory_text
from seqplan.planner.cluster_spec import ClusterSpec, Kernel
from seqplan.planner.errors import SeqplanError
from seqplan.planner.estimate_changes import Difference, differences
from seqplan.planner.implementation import Capabilities, ImplementationSpec
from seqplan.planner.layout import Attention, Layout, Recompute, Schedule
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.output_file import check_output_path as check_output_path
from seqplan.planner.output_file import write_whole
from seqplan.planner.question import Question
from seqplan.planner.reading.strict_yaml import load_yaml
from seqplan.planner.results import MemoryEstimate, ScoredLayout, TimeEstimate
from seqplan.planner.rules.legality import reasons, run_reasons
from seqplan.planner.rules.model_features import FEATURES
from seqplan.planner.search import score
from seqplan.planner.spec import Spec
from seqplan.planner.train_spec import Optimizer, TrainSpec
from seqplan.planner.validation import validate_spec

SCHEMA = "seqplan/1"

MOST_CHANGES = 3
"""Numbers of the estimate whose change a warning says; of more the count."""

_CALLED = {"memory.peak_bytes": "peak memory", "time.step_time_s": "step time"}


class Estimate(Spec):
    """What the planner expects of the run."""

    memory: MemoryEstimate
    time: TimeEstimate


class Provenance(Spec):
    """Which seqplan made the plan, and from what."""

    seqplan_version: str
    inputs: dict[str, str] = Field(description="name and SHA-256 of model, cluster and implementation")


class Plan(Spec):
    """All that a run needs, and what is expected of it."""

    schema_: Literal["seqplan/1"] = Field(default="seqplan/1", alias="schema")
    model: ModelSpec
    cluster: ClusterSpec
    gpus: int = Field(ge=1, description="world size; the product of the degrees")
    train: TrainSpec
    layout: Layout
    implementation: str = Field(description="the trainer that the plan was made for")
    estimate: Estimate
    provenance: Provenance

    def question(self, implementation: ImplementationSpec) -> Question:
        """The planning problem that this plan answers."""
        return Question(
            model=self.model,
            cluster=self.cluster,
            gpus=self.gpus,
            train=self.train,
            implementation=implementation,
        )


def make_plan(question: Question, scored: ScoredLayout) -> Plan:
    """The plan of one scored layout."""
    assert scored.memory is not None
    assert scored.time is not None
    notes = (*scored.time.notes, *placement_lines(question, scored.layout, scored.time))
    return Plan(
        schema="seqplan/1",
        model=question.model,
        cluster=question.cluster,
        gpus=question.gpus,
        train=question.train,
        layout=scored.layout,
        implementation=question.implementation.name,
        estimate=Estimate(memory=scored.memory, time=scored.time.model_copy(update={"notes": notes})),
        provenance=Provenance(seqplan_version=__version__, inputs=input_hashes(question)),
    )


def input_hashes(question: Question) -> dict[str, str]:
    """Name and hash of each input, the hash taken over its content in one canonical form."""
    model, cluster, trainer = question.model, question.cluster, question.implementation
    return {
        "model": f"{model.name} sha256:{_digest(model)}",
        "cluster": f"{cluster.name} sha256:{_digest(cluster)}",
        "implementation": f"{trainer.name} sha256:{_digest(trainer)}",
    }


def _digest(spec: Spec) -> str:
    text = json.dumps(spec.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class _Dumper(yaml.SafeDumper):
    """Lists of plain values on one line; no anchors, so that the text reads top to bottom."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_list(dumper: _Dumper, data: list[Any]) -> yaml.Node:
    plain = not any(isinstance(item, list | dict) or " " in str(item) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=plain)


_Dumper.add_representer(list, _represent_list)


def plan_text(plan: Plan) -> str:
    """The plan as YAML."""
    data = plan.model_dump(mode="json", by_alias=True)
    head = f"# Made by seqplan {plan.provenance.seqplan_version}: train it with `seqplan run`.\n"
    return head + yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


def save_plan(plan: Plan, path: Path) -> None:
    """Write the plan file."""
    check_output_path(path)
    write_whole(path, [plan_text(plan)])


LoadImplementation = Callable[[str], ImplementationSpec]


def load_plan(path: Path, load_implementation: LoadImplementation | None = None) -> Plan:
    """Read and check a plan. With `load_implementation` also what its trainer needs, and what a run needs."""
    data = load_yaml(path)
    _check_schema(path, data)
    plan = validate_spec(Plan, data, str(path))
    if load_implementation is None:
        broken = reasons(plan.question(_ANY_TRAINER), plan.layout)
    else:
        broken = run_reasons(plan.question(trainer_of(plan, path, load_implementation)), plan.layout)
    if broken:
        raise SeqplanError(f"{path}: {' '.join(reason.message for reason in broken)}")
    return plan


def trainer_of(plan: Plan, path: Path, load_implementation: LoadImplementation) -> ImplementationSpec:
    """The trainer that the plan was made for; one that is not built in is the file's fault."""
    try:
        return load_implementation(plan.implementation)
    except SeqplanError as error:
        raise SeqplanError(f"{path}: {error.message}", error.hint) from None


def _check_schema(path: Path, data: dict[str, Any]) -> None:
    schema = data.get("schema")
    if schema == SCHEMA:
        return
    name, _, version = str(schema).partition("/")
    if schema is None:
        raise SeqplanError(f"{path}: no `schema`: not a plan.", f"A plan begins with schema: {SCHEMA}.")
    if name == "seqplan" and version.isdigit() and int(version) > 1:
        raise SeqplanError(
            f"{path}: written by a newer seqplan (schema {schema}; this one reads {SCHEMA}).",
            "Update seqplan, or make the plan again.",
        )
    raise SeqplanError(f"{path}: schema is {schema!r}, not {SCHEMA}.", "Make the plan again: suggest -o.")


def plan_warnings(plan: Plan, implementation: ImplementationSpec) -> tuple[str, ...]:
    """Where the file is no longer what this version would write: changed inputs, another estimate."""
    question = plan.question(implementation)
    found = [
        f"the {kind} is not the one that the plan was made from: {plan.provenance.inputs.get(kind, 'none')}."
        for kind, now in input_hashes(question).items()
        if plan.provenance.inputs.get(kind) != now
    ]
    scored = score(question, plan.layout)
    if scored.memory is not None and scored.time is not None:
        now_estimate = Estimate(memory=scored.memory, time=scored.time)
        found += _changes(plan, differences(plan.estimate.model_dump(), now_estimate.model_dump()))
    return tuple(found)


def _changes(plan: Plan, changed: list[Difference]) -> list[str]:
    """What the estimates differ in: a line for each of the first, the two that matter most before all."""
    made_by = plan.provenance.seqplan_version
    why = "the file was edited" if made_by == __version__ else f"plan made by {made_by}"
    first = sorted(changed, key=lambda each: each.path not in ("memory.peak_bytes", "time.step_time_s"))
    lines = [
        f"the plan's {_CALLED.get(each.path, each.path)} is {each.planned} and seqplan {__version__} "
        f"estimates {each.now} ({each.by}{why})."
        for each in first[:MOST_CHANGES]
    ]
    more = len(first) - MOST_CHANGES
    return lines + [f"{more} more numbers of the plan's estimate differ."] * (more > 0)


def require_fit(plan: Plan, implementation: ImplementationSpec) -> None:
    """SeqplanError where this version finds that the run needs more memory than its device gives it."""
    memory = score(plan.question(implementation), plan.layout).memory
    assert memory is not None, "a plan that can be run can be costed"
    if memory.peak_bytes <= memory.limit_bytes:
        return
    worst = memory.stages[memory.worst_stage]
    text = memory_text(worst.stage, worst.peak_bytes, memory.limit_bytes, worst.by_kind)
    raise SeqplanError(
        f"this plan does not fit {plan.cluster.device.name}: {text}",
        "Make a new plan: seqplan suggest -o.",
    )


_ANY_TRAINER = ImplementationSpec(
    name="any trainer",
    source="no trainer's limits: only what no trainer could do",
    capabilities=Capabilities(
        attention=get_args(Attention),
        kernels=get_args(Kernel),
        schedules=get_args(Schedule),
        recompute=get_args(Recompute),
        partial_recompute=True,
        zero_stages=(0, 1, 2, 3),
        precisions=("fp32", "bf16", "fp16", "fp8"),
        tp_sequence_parallel=(False, True),
        hybrid_sharding=True,
        uneven_stages=True,
        ulysses=True,
        tp_copies_kv_heads=True,
        chunked_head=True,
        min_microbatches_per_stage=0,
        interleaves_whole_groups=False,
        vocab_multiple=1,
        optimizers=get_args(Optimizer),
        gradient_bytes=(2, 4),
        model_features=FEATURES,
    ),
)
