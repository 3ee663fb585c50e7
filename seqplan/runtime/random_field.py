"""Randomness that belongs to the global index: a stateless hash, evaluated where a rank needs it.

A value is a function of (seed, global row, global column) and of nothing else, so that initial weights,
dropout masks and masked positions are the same numbers on 1 rank and on any layout, and no rank makes
more than its own part. torch's generators give a stream instead: what a rank draws depends on what it
drew before, and DTensor repeats shards on CPU (measured, torch 2.13).

Only integer arithmetic and one final exact scaling are used: vectorised transcendental functions may
differ in the last bit with the position of an element in a tensor, and so with the layout.
Shapes: R rows, C columns.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_MASK32 = 0xFFFFFFFF


def seed_of(*parts: str | int) -> int:
    """A 32-bit seed from names and numbers: seed_of(seed, "layers.3.mlp.up.weight")."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little")


def _signed(word: int) -> int:
    """The int32 with the bits of a 32-bit word (torch has no full uint32 arithmetic on CPU)."""
    word &= _MASK32
    return word - (1 << 32) if word >= (1 << 31) else word


def _mix_(x: Tensor) -> Tensor:
    """Avalanche of an int32 tensor, in place: every input bit flips each output bit with probability 1/2.

    The constants are C. Wellons' "lowbias32" (hash-prospector, bias 0.17 of a 32-bit integer hash).
    A logical shift is an arithmetic one with the sign's copies masked off.
    """
    x ^= (x >> 16) & 0xFFFF
    x *= _signed(0x7FEB352D)
    x ^= (x >> 15) & 0x1FFFF
    x *= _signed(0x846CA68B)
    x ^= (x >> 16) & 0xFFFF
    return x


def _keys(seed: int, index: Tensor) -> Tensor:
    """One int32 key for each 64-bit index; both halves of the index count."""
    low = (index & _MASK32).to(torch.int64)
    high = index >> 32
    key = torch.where(low >= (1 << 31), low - (1 << 32), low).to(torch.int32)
    key ^= _signed(seed)
    key = _mix_(key)
    key += high.to(torch.int32)
    return _mix_(key)


def hash_bits(seed: int, rows_R: Tensor, cols_C: Tensor) -> Tensor:
    """32 hashed bits for each (row, column). rows [R], cols [C] int64 -> [R, C] int32."""
    rows = _keys(seed, rows_R)
    cols = _keys(seed ^ 0x9E3779B9, cols_C)
    return _mix_(rows[:, None] + cols[None, :])


def keep_mask(seed: int, rows_R: Tensor, cols_C: Tensor, drop_probability: float) -> Tensor:
    """Which elements dropout keeps. -> [R, C] bool, True with probability 1 - drop_probability.

    The probability is exact to 2 ** -32.
    """
    threshold = _signed(round(drop_probability * (1 << 32)) - (1 << 31))
    return hash_bits(seed, rows_R, cols_C) >= threshold


def normal(seed: int, rows_R: Tensor, cols_C: Tensor) -> Tensor:
    """Standard-normal-like values. -> [R, C] float32, mean 0, variance 1, |x| < 4.9.

    The sum of eight independent 16-bit uniforms (Irwin-Hall), in integers and so exact on every layout.
    Its excess kurtosis is -0.15; that the tails end at 4.9 deviations is what truncated initialisers want.
    """
    total = torch.zeros(len(rows_R), len(cols_C), dtype=torch.int32, device=rows_R.device)
    for word in range(4):
        bits = hash_bits(seed_of(seed, word), rows_R, cols_C)
        total += bits & 0xFFFF
        total += (bits >> 16) & 0xFFFF
    # A 16-bit uniform has mean 32767.5 and variance (2**32 - 1) / 12; eight of them add up.
    deviation = (8 * (2**32 - 1) / 12) ** 0.5
    return (total - 262140).to(torch.float32).div_(deviation)
