"""Every tensor that one layer keeps of one micro-batch, by name: the inventory made visible for one layout.

The same rows that memory_model.py adds up, so the list's sum is the estimate's layer and nothing else.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from seqplan.planner.activations import RecomputeMode
from seqplan.planner.choosing.layout_table import from_layout
from seqplan.planner.layout import Layout
from seqplan.planner.memory.heads_exchange import with_heads_exchange
from seqplan.planner.memory.symbols import layout_values
from seqplan.planner.question import Question
from seqplan.planner.spec import Spec


class KeptTensor(Spec):
    """One tensor of a layer, for one micro-batch on one rank."""

    name: str
    kind: str
    size_bytes: float
    kept: bool = Field(description="until the backward; false: recomputed there")
    formula: str = Field(description="elements x bytes, over the symbols of the inventory")
    note: str = ""


def kept_tensors(question: Question, layout: Layout) -> tuple[KeptTensor, ...]:
    """The layer's rows that exist under this layout, in the order of the forward pass."""
    values = layout_values(question, from_layout(layout, question.train))
    mode: RecomputeMode = layout.recompute
    found = []
    for row in with_heads_exchange(question.implementation).layer:
        size = float(np.max(row.size_bytes(values)))
        kept = mode in row.kept_with
        if size and (kept or "none" in row.kept_with):
            found.append(
                KeptTensor(
                    name=row.name,
                    kind=row.kind,
                    size_bytes=size,
                    kept=kept,
                    formula=f"({row.elements}) x {row.bytes}",
                    note=row.note,
                )
            )
    return tuple(found)
