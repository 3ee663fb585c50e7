"""Why a layout is not allowed: all the rules in one list, for one layout and for a table of candidates.

One function a rule (rules_degrees, _pipeline, _ulysses, _trainer, _float8); here they are only applied, so
that the search, `explain`, `score` and the loading of a plan can never disagree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqplan.planner.choosing.layout_table import Bools, LayoutTable, from_layout
from seqplan.planner.layout import Layout
from seqplan.planner.question import Question
from seqplan.planner.results import Reason
from seqplan.planner.rules import rules_degrees, rules_float8, rules_pipeline, rules_trainer, rules_ulysses
from seqplan.planner.rules.rule import Rule

RULES: tuple[Rule, ...] = (
    *rules_degrees.RULES,
    *rules_pipeline.RULES,
    *rules_ulysses.RULES,
    *rules_trainer.RULES,
    *rules_float8.RULES,
)


@dataclass(frozen=True)
class Verdict:
    """What is wrong with one layout: nothing; what makes the split impossible; what the trainer lacks."""

    reasons: tuple[Reason, ...]
    legal: bool
    costable: bool
    """Legal, and the trainer's inventory knows what such a layout keeps."""
    runnable: bool


def verdict(question: Question, layout: Layout) -> Verdict:
    """Every rule that the layout breaks, each with its numbers and the values that would work."""
    table = from_layout(layout, question.train)
    broken = [rule for rule in RULES if rule.breaks(question, table)]
    return Verdict(
        reasons=tuple(Reason(rule=rule.name, message=rule.message(question, layout)) for rule in broken),
        legal=all(rule.scope != "layout" for rule in broken),
        costable=all(rule.scope == "trainer" for rule in broken),
        runnable=not broken,
    )


def reasons(question: Question, layout: Layout) -> tuple[Reason, ...]:
    """Every rule that the layout breaks; empty for a layout that the chosen trainer can run."""
    return verdict(question, layout).reasons


def run_reasons(question: Question, layout: Layout) -> tuple[Reason, ...]:
    """`reasons`, and what only a real run refuses: positions beyond the learned table have no weights."""
    found = reasons(question, layout)
    model, seq_len = question.model, question.train.seq_len
    limit = model.max_position_embeddings
    if model.position == "learned" and limit is not None and seq_len > limit:
        message = (
            f"seq_len={seq_len} is beyond the {limit} learned positions of {model.name}; use at most {limit}."
        )
        found = (*found, Reason(rule="learned_positions", message=message))
    return found


@dataclass(frozen=True)
class Sieve:
    """Which rows of a table pass, and which rule each other row fell to first; masks broadcast in a grid."""

    runnable: Bools
    costable: Bools
    fell_to: tuple[tuple[Rule, Bools], ...]


def sieve_alike(question: Question, one: LayoutTable, other: LayoutTable) -> bool:
    """Whether the rules say the same of two tables that differ in stage_layers alone, of one longest stage.

    Only a rule that is true or false of a whole table depends on how its layers are split.
    """
    for rule in RULES:
        if rule.about_stages and rule.broken(question, one) != rule.broken(question, other):
            return False
    return True


def sieve(question: Question, table: LayoutTable) -> Sieve:
    """All rules over all rows. A row is counted once, under the first rule that it breaks."""
    standing = np.ones(len(table), dtype=np.bool_)
    costable = np.ones(len(table), dtype=np.bool_)
    fell_to = []
    for rule in RULES:
        broken = rule.mask(question, table)
        if not broken.any():
            continue
        first = standing & broken
        standing = standing & ~broken
        if rule.scope != "trainer":
            costable = costable & ~broken
        if first.any():
            fell_to.append((rule, first))
    return Sieve(runnable=standing, costable=costable, fell_to=tuple(fell_to))
