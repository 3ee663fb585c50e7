"""Where no layout is legal: the rules that every candidate breaks, and whether another trainer has a layout.

A candidate is counted under the first rule that it breaks, so the counts do not show what all of them break:
where the trainer lacks the model, some candidates fall to rules of the degrees all the same.
"""

from __future__ import annotations

from seqplan.planner.choosing.layout_grid import Grid, candidate_grids
from seqplan.planner.choosing.scan import sieve_splits
from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout_space import check_pins, trainer_choices
from seqplan.planner.question import Pins, Question
from seqplan.planner.results import Reason
from seqplan.planner.rules.legality import RULES
from seqplan.planner.rules.rule import Rule


def broken_by_all(question: Question, pins: Pins) -> tuple[Reason, ...]:
    """Each rule that every candidate breaks, with its message for one of them."""
    rules, example = RULES, None
    for grid in candidate_grids(question, pins, trainer_choices(question)):
        if not grid.weight.any():
            continue
        example = example or grid.example(True).row(0)
        rules = tuple(rule for rule in rules if _breaks_all(question, rule, grid))
        if not rules:
            return ()
    if example is None:
        return ()
    return tuple(Reason(rule=rule.name, message=rule.message(question, example)) for rule in rules)


def _breaks_all(question: Question, rule: Rule, grid: Grid) -> bool:
    splits = grid.each_split() if rule.about_stages else [grid]
    return all(bool((rule.mask(question, each.table) | (each.weight == 0)).all()) for each in splits)


def has_legal_layout(question: Question, pins: Pins) -> bool:
    """Whether any candidate breaks no rule; memory and time are not asked for."""
    try:
        check_pins(question, pins)
    except SeqplanError:
        return False
    for grid in candidate_grids(question, pins, trainer_choices(question)):
        for sieved, splits in sieve_splits(question, grid):
            if any(each.count(sieved.runnable) for each in splits):
                return True
    return False
