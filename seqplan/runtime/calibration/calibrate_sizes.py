"""What sizes calibrate measures on each kind of device; a test gives smaller ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Sizes of everything that is measured."""

    matmuls: tuple[tuple[int, int, int], ...]
    """(rows, columns, depth) of [rows, depth] x [depth, columns]: square, and as in a split layer."""
    attention: tuple[tuple[int, int, int], ...]
    """(tokens, heads, head size)."""
    copy_bytes: tuple[int, ...]
    between_tokens: tuple[int, ...]
    """Tokens of the operators between the matmuls."""
    between_hidden: int
    transfer_bytes: tuple[int, ...]
    """Of the whole tensor."""
    work_between: tuple[int, int, int] | None = None
    """The matmul before each transfer, where ranks share what computes; about as long as a transfer."""
    rounds: int = 7
    """Windows of each measurement, of which the median counts."""


SIZES = {
    "cpu": Sizes(
        matmuls=(
            (128, 128, 128), (256, 256, 256), (512, 512, 512), (1024, 256, 256), (1024, 768, 256),
            (256, 1024, 256), (2048, 128, 256), (512, 64, 512), (256, 256, 1024), (1024, 1024, 512),
        ),
        attention=((128, 4, 64), (256, 4, 64), (512, 4, 64), (1024, 4, 64), (256, 8, 32), (256, 2, 128)),
        copy_bytes=(1 << 20, 8 << 20, 32 << 20),
        between_tokens=(512, 1024, 2048),
        between_hidden=256,
        transfer_bytes=(16 << 10, 256 << 10, 1 << 20, 4 << 20),
        work_between=(1024, 512, 256),
    ),
    "cuda": Sizes(
        matmuls=(
            (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192),
            (4096, 1024, 4096), (4096, 4096, 512), (8192, 512, 4096), (16384, 4096, 1024), (1024, 4096, 8192),
        ),
        attention=(
            (512, 32, 128), (1024, 32, 128), (2048, 16, 128), (4096, 16, 128), (8192, 16, 128),
            (16384, 8, 128), (2048, 32, 64), (8192, 32, 64),
        ),
        copy_bytes=(64 << 20, 256 << 20, 1 << 30),
        between_tokens=(4096, 8192, 16384),
        between_hidden=4096,
        transfer_bytes=(64 << 10, 1 << 20, 16 << 20, 128 << 20),
    ),
}  # fmt: skip
