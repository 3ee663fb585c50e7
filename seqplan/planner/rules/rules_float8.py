"""float8 matmuls: every side of a rank's weights must be a multiple of 16, or the library has no kernel.

cuBLASLt multiplies float8 matrices only where their leading dimensions are multiples of 16 bytes, and
TransformerEngine stops otherwise (assert_dim_for_fp8_exec). A weight is used as it is in the forward and
transposed for its input's gradient, so both sides count: Llama 2 7B's 11,008 can be cut over 16 ranks (688)
and not over 32 (344). Embedding and head stay in bf16.
"""

from __future__ import annotations

import numpy as np

from seqplan.planner.choosing.layout_table import Bools, LayoutTable
from seqplan.planner.layout import Layout
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.question import Question
from seqplan.planner.reading.integers import divisors, listed
from seqplan.planner.rules.rule import Rule

FLOAT8_MULTIPLE = 16
"""cuBLASLt, float8 matmuls: dimensions in multiples of 16 (cuBLAS documentation, cublasLtMatmul)."""


def _split_sides(model: ModelSpec) -> tuple[int, ...]:
    """The sides of a layer's weights that tensor parallelism cuts."""
    found = set()
    for tensor in model.parameter_tensors():
        if tensor.place == "layer" and len(tensor.shape) == 2 and tensor.tp_split in ("column", "row"):
            found.add(tensor.shape[0] if tensor.tp_split == "column" else tensor.shape[1])
    return tuple(sorted(found))


def _float8_broken(question: Question, table: LayoutTable) -> Bools | bool:
    if table.precision != "fp8":
        return False
    wrong: Bools = np.zeros(len(table), dtype=np.bool_)
    for side in _split_sides(question.model):
        wrong = wrong | (side % (table.tp * FLOAT8_MULTIPLE) != 0)
    return wrong


def _float8(question: Question, layout: Layout) -> str:
    sides = _split_sides(question.model)
    side = next(side for side in sides if side % (layout.tp * FLOAT8_MULTIPLE))
    good = [
        tp
        for tp in divisors(question.gpus)
        if tp < layout.tp and not any(side % (tp * FLOAT8_MULTIPLE) for side in sides)
    ]
    ways = ([f"tp {listed(good)}"] if good else []) + ["precision=bf16"]
    return (
        f"precision=fp8 multiplies matrices whose sides are multiples of {FLOAT8_MULTIPLE}, and "
        f"tp={layout.tp} cuts a weight's {side} into {side / layout.tp:g}; use {listed(ways)}."
    )


RULES: tuple[Rule, ...] = (Rule("float8_sides", "trainer", _float8_broken, _float8),)
