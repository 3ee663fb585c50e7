"""What completes a layout that was typed in part: the default of every field that was left out.

Apart from layout.py, which a Question is made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import AXES, Kernel, Layout, StageBalance, parse_degrees, spread_layers
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.question import Question
from seqplan.planner.validation import validate_spec


def default_stage_layers(model: ModelSpec, pp: int, balance: StageBalance = "layers") -> tuple[int, ...]:
    """Layers of each stage where the user says none; pp is at most the number of layers."""
    return spread_matmuls(model, pp) if balance == "matmuls" else spread_layers(model.num_layers, pp)


def spread_matmuls(model: ModelSpec, pp: int) -> tuple[int, ...]:
    """Layers of each stage as nanotron places them (models/base.py): equal shares of the matmuls' weights.

    The head counts, so the last stages have fewer layers, or none; the layer that passes a share still
    belongs to it. kv heads count as many as heads.
    """
    layer = 4 * model.attention_size * model.hidden_size + 3 * model.ffn_hidden_size * model.hidden_size
    whole = model.num_layers * layer + model.vocab_size * model.hidden_size
    stages, stage = [0] * pp, 0
    for number in range(1, model.num_layers + 1):
        stages[stage] += 1
        stage += number * layer * pp > whole * (stage + 1)
    return tuple(stages)


def best_kernel(question: Question, precision: str, attention: str) -> Kernel:
    """The best attention kernel that device and trainer have for dtype and head; rsa has its own matmuls."""
    has = question.implementation.capabilities.kernels
    usable = question.cluster.device.kernels(precision, question.model.head_dim)
    found = () if attention == "rsa" else tuple(kernel for kernel in usable if kernel in has)
    return found[0] if found else "math"


def complete_layout(question: Question, given: Mapping[str, Any]) -> Layout:
    """A Layout from the fields that the user gave; each absent one takes its default.

    micro_batch_size is 1 where absent: it divides every batch, and gives a pipeline the most micro-batches.
    zero_stage is the least that the trainer has; tensors are whole in tp where it can have them whole.
    """
    unknown = [name for name in given if name not in Layout.model_fields]
    if unknown:
        fields = ", ".join(Layout.model_fields)
        raise SeqplanError(
            f"layout has no field {', '.join(map(repr, unknown))}.", f"The fields are {fields}."
        )
    fields_ = {name: value for name, value in given.items() if value is not None}
    for axis in AXES:
        fields_.setdefault(axis, 1)
    pp, sp = fields_["pp"], fields_["sp"]
    dropout = question.train.attention_dropout > 0 and "rsa" in question.implementation.capabilities.attention
    fields_.setdefault("micro_batch_size", 1)
    fields_.setdefault("zero_stage", min(question.implementation.capabilities.zero_stages))
    if fields_["tp"] != 1 and False not in question.implementation.capabilities.tp_sequence_parallel:
        fields_.setdefault("tp_sequence_parallel", True)
    fields_.setdefault("attention", "rsa" if dropout else "none" if sp == 1 else "ring")
    fields_.setdefault("ulysses_degree", sp if fields_["attention"] == "ulysses" else 1)
    fields_.setdefault("schedule", "none" if pp == 1 else "1f1b")
    fields_.setdefault("precision", question.precision)
    if "stage_layers" not in fields_:
        stages = min(pp, question.model.num_layers) if isinstance(pp, int) and pp >= 1 else 1
        balance = question.implementation.capabilities.stage_balance
        fields_["stage_layers"] = default_stage_layers(question.model, stages, balance)
    fields_.setdefault("kernel", best_kernel(question, fields_["precision"], fields_["attention"]))
    return layout_from_fields(fields_)


def layout_from_fields(fields: Mapping[str, Any]) -> Layout:
    """A Layout from plain values, as JSON or YAML give them; all wrong fields are named at once."""
    return validate_spec(Layout, fields, "layout")


def parse_layout(text: str, question: Question, pins: Mapping[str, Any] | None = None) -> Layout:
    """A complete layout from its short form and the fields pinned by flags; the two must not disagree."""
    fields = parse_degrees(text)
    for name, value in (pins or {}).items():
        if value is None:
            continue
        if name in fields and fields[name] != value:
            raise SeqplanError(
                f"--layout says {name}={fields[name]} and --{name.replace('_', '-')} says {value}.",
                "Give it once.",
            )
        fields[name] = value
    return complete_layout(question, fields)
