"""Units: exact factors, and no guess where a unit could mean two things."""

from __future__ import annotations

import pytest

from seqplan.planner.units import dimension_of, parse


@pytest.mark.parametrize(
    ("text", "dimension", "expected"),
    [
        ("80 GiB", "bytes", 80 * 2**30),
        ("80GiB", "bytes", 80 * 2**30),
        ("80 GB", "bytes", 80 * 10**9),
        ("1.1 kB", "bytes", 1100),
        ("0.5 TiB", "bytes", 2**39),
        ("12 B", "bytes", 12),
        ("600 GB/s", "bytes_per_s", 600 * 10**9),
        ("400 Gb/s", "bytes_per_s", 50 * 10**9),  # 8 bits a byte
        ("100 Gbit/s", "bytes_per_s", 12_500_000_000),
        ("3.35 TB/s", "bytes_per_s", 3_350_000_000_000),
        ("989.4 TFLOP/s", "flops_per_s", 989.4e12),
        ("2.25 PFLOPS", "flops_per_s", 2.25e15),
        ("2 us", "s", 2e-6),
        ("1e3 ns", "s", 1e-6),
        ("84 %", "share", 0.84),
    ],
)
def test_units_are_exact(text: str, dimension: str, expected: float) -> None:
    assert parse(text, dimension) == expected


@pytest.mark.parametrize(
    ("text", "dimension", "said"),
    [
        ("80 G", "bytes", "unit 'G'"),
        ("80 gb", "bytes", "unit 'gb'"),
        ("80 Gb", "bytes", "unit 'Gb'"),
        ("200 Gbps", "bytes_per_s", "unit 'Gbps'"),
        ("200 GB", "bytes_per_s", "50 GB/s or 400 Gb/s"),
        ("200", "bytes_per_s", "without quotes"),
        ("fast", "bytes_per_s", "not a number with a unit"),
        ("2 min", "s", "2 us"),
        ("512", "count", "write the number without quotes: 512"),
        ("330 k", "count", "unit 'k' of '330 k' does not fit here; write 512"),
        ("\uff18\uff10 GiB", "bytes", "not a number with a unit"),  # full-width digits
    ],
)
def test_an_unclear_unit_is_refused_with_what_to_write(text: str, dimension: str, said: str) -> None:
    with pytest.raises(ValueError) as error:
        parse(text, dimension)
    assert said in str(error.value)


def test_the_name_of_a_key_says_its_unit() -> None:
    keys = {
        "memory_bytes": "bytes",
        "memory_bytes_per_s": "bytes_per_s",
        "peak_flops_per_s": "flops_per_s",
        "kernel_launch_s": "s",
        "matmul_efficiency": "share",
        "efficiency": "share",
        "fragmentation_fraction": "share",
        "attention_half_tokens": "count",
        "attention_dtype_half_head_dim": "count",
        "gpus_per_node": None,
        "max_head_dim": None,
        "attention_kernels": None,
        "name": None,
    }
    assert {key: dimension_of(key) for key in keys} == keys
