"""Symbols of the inventory that mirror a rule of the runtime."""

from __future__ import annotations

import numpy as np
import pytest

from seqplan.planner.memory.symbols import ring_head_groups
from seqplan.runtime.attention.head_groups import number_of_groups


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 4, 5, 6, 8, 12, 36])
def test_head_groups_are_the_runtimes(kv_heads: int) -> None:
    sizes = [1, 1 << 20, (1 << 20) * 2 - 1, 1 << 21, (1 << 20) * 5, 1 << 23, 1 << 30]
    planned = ring_head_groups(np.full(len(sizes), float(kv_heads)), np.array(sizes, dtype=np.float64))
    assert planned.tolist() == [number_of_groups(kv_heads, size) for size in sizes]
