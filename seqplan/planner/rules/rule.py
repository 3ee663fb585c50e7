"""Rule: one reason why a layout is not allowed, as a mask over many layouts and as a sentence about one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from seqplan.planner.choosing.layout_table import Bools, LayoutTable
from seqplan.planner.layout import Layout
from seqplan.planner.question import Question

Scope = Literal["layout", "trainer", "inventory"]
"""layout: the split itself is impossible. trainer: it can be costed, but the chosen trainer cannot run it.
inventory: nor can it be costed, since the trainer's list of tensors says nothing about such an option, and
would silently give the numbers of another one."""


@dataclass(frozen=True)
class Rule:
    """`broken` answers for every row of a table; `message` explains one broken row, with what would work."""

    name: str
    scope: Scope
    broken: Callable[[Question, LayoutTable], Bools | bool]
    message: Callable[[Question, Layout], str]
    about_stages: bool = False
    """Depends on the split of the layers, beyond the longest stage; `broken` then is one bool, not a mask."""

    def breaks(self, question: Question, row: LayoutTable) -> bool:
        """Whether the one row of a table breaks the rule."""
        broken = self.broken(question, row)
        return broken if isinstance(broken, bool) else bool(broken[0])

    def mask(self, question: Question, table: LayoutTable) -> Bools:
        """One truth value a row, also where the rule depends on what all rows share; broadcasts in a grid."""
        broken = np.asarray(self.broken(question, table), dtype=np.bool_)
        return np.broadcast_to(broken, (*broken.shape[:-1], len(table)))
