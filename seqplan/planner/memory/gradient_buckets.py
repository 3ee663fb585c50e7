"""Buckets in which our trainer sums replicated gradients: a walk over the stage's weights, as it makes them.

Weights are taken in the order in which a backward reaches them (norms aside, which are small), and a bucket
ends once it is full, so that the last weight makes it larger (runtime/data_parallel.py, to which a test holds
this).
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np

from seqplan.planner.choosing.layout_table import LayoutTable
from seqplan.planner.memory.model_states import head_stage, rows_and_columns
from seqplan.planner.memory.symbols import column
from seqplan.planner.question import Question

BUCKET_ELEMENTS = 8 << 20
"""data_parallel.BUCKET_BYTES of fp32; a test holds the two together."""

PROJECTIONS = ("attention.query.", "attention.key.", "attention.value.")
"""Weights of a layer whose gradients come after its attention's backward."""

Sizes = tuple[int, ...]


class GradientBuckets:
    """The buckets of every stage, for all rows of one table."""

    def __init__(self, question: Question, table: LayoutTable) -> None:
        degrees, self._places = np.unique(table.tp, return_inverse=True)
        copied = table.pp > 1 and head_stage(table) != 0
        tensors = question.model.parameter_tensors()
        self._weights: list[dict[str, Sizes]] = []
        for degree in degrees:
            tp = int(degree)
            padded = question.implementation.capabilities.padded_vocab(question.model.vocab_size, column(tp))
            found: dict[str, list[int]] = {"embedding": [], "layer": [], "head": []}
            for tensor in tensors:
                if tensor.tied_to is not None and not copied:
                    continue
                rows, columns = rows_and_columns(tensor.shape, tensor.tp_split, column(tp), padded / tp)
                place = "head" if tensor.place == "final" else tensor.place
                found[place].append(int(rows * columns))
            places = [tensor.name for tensor in tensors if tensor.place == "layer"]
            found["projections"] = [
                size
                for name, size in zip(places, found["layer"], strict=True)
                if name.startswith(PROJECTIONS)
            ]
            self._weights.append({place: tuple(reversed(sizes)) for place, sizes in found.items()})

    def stage(self, layers: int, first: bool, last: bool) -> dict[str, Any]:
        """The symbols of one stage: Pb, Pa, Pc. A bucket goes when the next one is complete."""
        last_two, at_attention, at_embedding = [], [], []
        for weights in self._weights:
            head, embedding = weights["head"] if last else (), weights["embedding"] if first else ()
            found = buckets(head, weights["layer"], layers, embedding)
            last_two.append(max(found[-2:], default=0))
            there = sum(found) - sum(embedding)
            at_embedding.append(last_complete(found, there))
            at_attention.append(last_complete(found, there - sum(weights["projections"])) if layers else 0)
        columns = (("Pb", last_two), ("Pa", at_attention), ("Pc", at_embedding))
        return {symbol: self._column(sizes) for symbol, sizes in columns}

    def _column(self, by_degree: list[int]) -> Any:
        return np.asarray(by_degree, dtype=np.float64)[self._places].reshape(np.shape(self._places))


def last_complete(found: Sizes, there: int) -> int:
    """Of some buckets the last that is complete with the first `there` gradients; 0 if none is."""
    complete = [size for size, end in zip(found, accumulate(found), strict=True) if end <= there]
    return complete[-1] if complete else 0


@lru_cache(maxsize=4096)
def buckets(head: Sizes, layer: Sizes, layers: int, embedding: Sizes) -> Sizes:
    """Elements of each bucket, first to last."""
    found: list[int] = []
    size = BUCKET_ELEMENTS
    for weight in (*head, *layer * layers, *embedding):
        if size >= BUCKET_ELEMENTS:
            found.append(0)
            size = 0
        size += weight
        found[-1] = size
    return tuple(found)
