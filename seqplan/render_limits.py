"""The answer of `limits`: one row a number of devices, one column a family, and how the families compare.

Where both length and batch are given: the smallest cluster of each family.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.planner.choosing.fewest_devices import FewestDevices, SmallestCluster
from seqplan.planner.limits import NAMES, Limit, Limits
from seqplan.planner.question import Question
from seqplan.planner.reading.integers import listed
from seqplan.render import count, gib, listing, plural, show, table, text
from seqplan.render_choices import choices, degrees
from seqplan.render_suggestion import asked as asked_in_full

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text


def show_limits(answer: Limits, question: Question, notes: tuple[str, ...] = ()) -> None:
    """Print the table, the best of each family, why others have no value, and what is assumed."""
    show(
        [
            asked(answer, question),
            values(answer),
            listing("The farthest of each family", farthest(answer)),
            listing("No value", reasons(answer)),
            listing("Warnings", answer.warnings, "bold yellow"),
            listing("Notes", [*notes, *answer.notes]),
        ]
    )


def unit(answer: Limits) -> str:
    return "tokens" if answer.searched == "seq_len" else "sequences"


def asked(answer: Limits, question: Question) -> Text:
    """The question in two lines."""
    given = (
        f"for {plural(answer.given, 'sequence')} in one pass"
        if answer.searched == "seq_len"
        else f"in one pass, with {count(answer.given)} tokens a sequence"
    )
    up_to = f"up to {question.gpus:,} x {question.cluster.device.name} of {answer.cluster}"
    return text(
        f"{answer.model} on {up_to}\n{NAMES[answer.searched]} {given}, {answer.precision}, "
        f"trainer {answer.implementation}",
        "bold",
    )


def by_family(answer: Limits) -> dict[str, dict[int, Limit]]:
    """family -> devices -> limit, both in the order asked."""
    found: dict[str, dict[int, Limit]] = {}
    for limit in answer.limits:
        found.setdefault(limit.family, {})[limit.gpus] = limit
    return found


def values(answer: Limits) -> Group:
    families = by_family(answer)
    devices = sorted({limit.gpus for limit in answer.limits})
    rows = []
    for gpus in devices:
        found = [families[family][gpus].value for family in families]
        rows.append([str(gpus), *("-" if value is None else count(value) for value in found)])
    title = f"{NAMES[answer.searched].capitalize()}, {unit(answer)}"
    return table(title, ["devices", *families], rows)


def farthest(answer: Limits) -> list[str]:
    """One line a family: the value, the layout that reaches it, and the ratio to tp."""
    families = by_family(answer)
    lines = []
    for best in answer.best:
        limit = families[best.family][best.gpus]
        assert limit.layout is not None
        assert limit.peak_bytes is not None
        assert limit.limit_bytes is not None
        against = "" if best.times_tp is None or best.family == "tp" else f", {best.times_tp:.2f} x tp"
        lines.append(
            f"{best.family}: {count(best.value)} {unit(answer)} on {plural(best.gpus, 'device')}{against}; "
            f"{degrees(limit.layout)}, {choices(limit.layout)}; "
            f"{gib(limit.peak_bytes)} of {gib(limit.limit_bytes)} GiB"
        )
    return lines


def reasons(answer: Limits) -> list[str]:
    """Why cells are empty: for each family the reason on the most devices."""
    lines = []
    for family, limits in by_family(answer).items():
        empty = [limit for limit in limits.values() if limit.value is None]
        if empty:
            devices = ", ".join(str(limit.gpus) for limit in empty)
            lines.append(f"{family} on {devices}: {empty[-1].why_not}")
    return lines


def show_fewest(answer: FewestDevices, question: Question, notes: tuple[str, ...] = ()) -> None:
    """Print the smallest cluster of each family, and what was tried."""
    tried = f"Tried were {', '.join(map(str, answer.tried))} devices, until one fits"
    if any(len(each.too_few) > 1 or each.gpus not in (None, *answer.tried) for each in answer.smallest):
        tried += ", and some whole nodes between"
    tried += "; --devices names others."
    lines = [_smallest(each, question) for each in answer.smallest]
    title = "The smallest cluster that fits, by family"
    warned = listing("Warnings", answer.warnings, "bold yellow")
    parts = [listing(title, lines), warned, listing("Notes", [*notes, tried, *answer.notes])]
    show([asked_in_full(question), *parts])


def _smallest(each: SmallestCluster, question: Question) -> str:
    if each.gpus is None or each.layout is None:
        return f"{each.family}: none of the clusters tried"
    assert each.peak_bytes is not None
    assert each.limit_bytes is not None
    short = f" (not on {listed(each.too_few)})" if each.too_few else ""
    return (
        f"{each.family}: {plural(each.gpus, 'device')} of {question.cluster.name}{short}; "
        f"{degrees(each.layout)}, "
        f"{choices(each.layout)}; {gib(each.peak_bytes)} of {gib(each.limit_bytes)} GiB"
    )
