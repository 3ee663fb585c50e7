"""Small whole-number helpers that rules and messages share."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """All positive divisors, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return (*small, *(number // d for d in reversed(small) if d * d != number))


def multiples_around(number: int, step: int) -> tuple[int, ...]:
    """The nearest positive multiples of `step` below and above `number`."""
    below = number // step * step
    return (below, below + step) if below else (step,)


def listed(values: Iterable[object], joiner: str = "or", at_most: int = 16) -> str:
    """`1, 2, 4 or 8`; a long list is cut."""
    texts = [str(value) for value in values]
    if len(texts) > at_most:
        return ", ".join(texts[:at_most]) + ", ..."
    return f" {joiner} ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)
