"""Quantities written as text, such as "80 GiB" or "400 Gb/s", to SI base units, exactly.

GB and GiB differ by 7 %, Gb and GB by a factor of 8, so a unit that could mean two things is refused
instead of guessed. The dimension comes from the key's name, whose suffix is its unit (`_bytes`,
`_bytes_per_s`, `_flops_per_s`, `_s`; `_efficiency` and `_fraction` are plain shares, `_tile` and the
half sizes of curves are counted).
"""

from __future__ import annotations

import re
from fractions import Fraction

_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")

_DECIMAL = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}


def _byte_units(per: str) -> dict[str, Fraction]:
    units = {f"{prefix}B{per}": Fraction(10**power) for prefix, power in _DECIMAL.items()}
    units |= {f"{prefix}B{per}": Fraction(2**power) for prefix, power in _BINARY.items()}
    units[f"KB{per}"] = Fraction(1000)
    return units


def _rate_units() -> dict[str, Fraction]:
    units = _byte_units("/s")
    for prefix, power in _DECIMAL.items():
        for name in (f"{prefix}b/s", f"{prefix}bit/s"):
            units[name] = Fraction(10**power, 8)
    return units


UNITS: dict[str, dict[str, Fraction]] = {
    "bytes": _byte_units(""),
    "bytes_per_s": _rate_units(),
    "flops_per_s": {
        f"{prefix}{name}": Fraction(10**power)
        for prefix, power in _DECIMAL.items()
        for name in ("FLOP/s", "FLOPS")
    },
    "s": {"s": Fraction(1), "ms": Fraction(1, 10**3), "us": Fraction(1, 10**6), "ns": Fraction(1, 10**9)},
    "share": {"%": Fraction(1, 100)},
    "count": {},
}
"""Accepted units of each dimension, as a factor to the SI base unit (a share is a number from 0 to 1; a
count has no unit)."""

_EXAMPLES = {
    "bytes": "80 GiB (2^30) or 80 GB (10^9)",
    "bytes_per_s": "50 GB/s or 400 Gb/s (bits)",
    "flops_per_s": "312 TFLOP/s",
    "s": "2 us",
    "share": "0.8 or 80 %",
    "count": "512",
}


def dimension_of(key: str) -> str | None:
    """What a number called `key` measures, by the suffix of its name; None where the name says nothing."""
    for suffix, dimension in (
        ("flops_per_s", "flops_per_s"),
        ("bytes_per_s", "bytes_per_s"),
        ("_bytes", "bytes"),
        ("_s", "s"),
        ("efficiency", "share"),
        ("_fraction", "share"),
        ("_half_outputs", "count"),
        ("_half_depth", "count"),
        ("_half_tokens", "count"),
        ("_half_head_dim", "count"),
        ("_tile", "count"),
    ):
        if key.endswith(suffix):
            return dimension
    return None


def parse(text: str, dimension: str) -> float:
    """The number in SI base units. ValueError says what is wrong and what to write."""
    number = _NUMBER.match(text.strip())
    example = _EXAMPLES[dimension]
    if number is None:
        raise ValueError(f"{text!r} is not a number with a unit; write {example}")
    unit = text.strip()[number.end() :].strip()
    if not unit:
        quotes = "without quotes, or with its unit" if UNITS[dimension] else "without quotes"
        raise ValueError(f"{text!r} is text; write the number {quotes}: {example}")
    factor = UNITS[dimension].get(unit)
    if factor is None:
        raise ValueError(f"unit {unit!r} of {text!r} does not fit here; write {example}")
    return float(Fraction(number.group()) * factor)
