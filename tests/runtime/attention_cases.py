"""Inputs, reference and comparison that the tests of ring attention and of rsa share.

The reference is explicit attention on one process in float64 (scores, softmax, matmul), written out here from
the definition, with gradients by torch's autograd and a random cotangent.
Shapes: B batch, L whole sequence, S tokens of one rank, H query heads, K kv heads, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor

from seqplan.runtime.sequence_split import split, unsplit

NAMES = ("out", "dq", "dk", "dv")

FLOAT64_TOLERANCE = 1e-10
"""Relative to the norm of the reference: float64 rounding of sums over some hundred terms is below 1e-14."""


@dataclass(frozen=True)
class Case:
    """One problem. No two sizes are equal, so that a swapped axis cannot go unseen."""

    causal: bool
    kv_heads: int = 2
    heads: int = 6
    batch: int = 2
    seq_len: int = 24
    head_dim: int = 5
    padding: str = "none"
    dtype: torch.dtype = torch.float64
    seed: int = 0

    def padded(self) -> Tensor | None:
        """[B, L] bool, True for keys that count."""
        valid = torch.ones(self.batch, self.seq_len, dtype=torch.bool)
        if self.padding == "none":
            return None
        if self.padding == "right":  # a whole block of the ring, and one key
            valid[0, self.seq_len // 2 :] = False
            valid[1, -1] = False
        elif self.padding == "left":  # under a causal mask the first rows see nothing at all
            valid[0, : self.seq_len // 2 + 1] = False
            valid[1, 0] = False
        elif self.padding == "holes":
            valid[:, 1::3] = False
        elif self.padding == "all":  # a batch row without any key
            valid[0] = False
        else:
            raise AssertionError(self.padding)
        return valid

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q [B, L, H, D], k and v [B, L, K, D], cotangent [B, L, H, D], in the case's dtype."""
        generator = torch.Generator().manual_seed(self.seed)
        heads = (self.heads, self.kv_heads, self.kv_heads, self.heads)
        q, k, v, cotangent = (
            torch.randn(
                self.batch, self.seq_len, h, self.head_dim, dtype=torch.float64, generator=generator
            ).to(self.dtype)
            for h in heads
        )
        return q, k, v, cotangent


def explicit_attention(
    q_BLHD: Tensor,
    k_BLKD: Tensor,
    v_BLKD: Tensor,
    *,
    causal: bool,
    valid_BL: Tensor | None = None,
    scale: float | None = None,
    mask: Tensor | None = None,
    keep_BHLL: Tensor | None = None,
    p: float = 0.0,
) -> Tensor:
    """softmax(q k^T * scale + masks) v, query head h with kv head h // (H / K); rows without a key give 0."""
    H, K, L = q_BLHD.shape[2], k_BLKD.shape[2], q_BLHD.shape[1]
    k, v = (x.repeat_interleave(H // K, dim=2) for x in (k_BLKD, v_BLKD))
    scale = q_BLHD.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.einsum("bihd,bjhd->bhij", q_BLHD, k) * scale
    if mask is not None:
        scores = scores + mask
    visible = torch.ones(L, L, dtype=torch.bool).tril() if causal else torch.ones(L, L, dtype=torch.bool)
    if valid_BL is not None:
        visible = visible & valid_BL[:, None, None, :]
    scores = scores.masked_fill(~visible, -math.inf)
    blind = (scores == -math.inf).all(-1, keepdim=True)
    probabilities = torch.softmax(scores.masked_fill(blind, 0.0), -1).masked_fill(blind, 0.0)
    if keep_BHLL is not None:
        probabilities = probabilities * keep_BHLL / (1 - p)
    return torch.einsum("bhij,bjhd->bihd", probabilities, v)


@cache
def reference(case: Case, scale: float | None = None) -> dict[str, Tensor]:
    """out, dq, dk, dv of the whole problem in float64."""
    q, k, v, cotangent = (x.double() for x in case.inputs())
    return with_gradients(
        lambda *qkv: explicit_attention(*qkv, causal=case.causal, valid_BL=case.padded(), scale=scale),
        q,
        k,
        v,
        cotangent,
    )


def with_gradients(
    attend: Callable[[Tensor, Tensor, Tensor], Tensor], q: Tensor, k: Tensor, v: Tensor, cotangent: Tensor
) -> dict[str, Tensor]:
    """Output and gradients of `attend`; the inputs must come out unchanged."""
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out = attend(*leaves)
    gradients = torch.autograd.grad(out, leaves, cotangent)
    for leaf, original in zip(leaves, (q, k, v), strict=True):
        assert torch.equal(leaf, original), "an input was changed in place"
    # A NaN would vanish in a maximum of errors.
    for name, x in zip(NAMES, (out, *gradients), strict=True):
        assert torch.isfinite(x).all(), f"{name} is not finite"
    return dict(zip(NAMES, (out.detach(), *gradients), strict=True))


def on_this_rank(
    case: Case,
    attend: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor],
    rank: int,
    world_size: int,
) -> dict[str, Tensor]:
    """The same for this rank's tokens; `attend` also takes the rank's part of the padding."""
    q, k, v, cotangent = (split(x, 1, world_size, rank, case.causal) for x in case.inputs())
    padded = case.padded()
    valid = None if padded is None else split(padded, 1, world_size, rank, case.causal)
    return with_gradients(lambda q, k, v: attend(q, k, v, valid), q, k, v, cotangent)


def assembled(parts: list[dict[str, Tensor]], causal: bool) -> dict[str, Tensor]:
    """What the ranks computed, put together along the sequence."""
    return {name: unsplit([part[name] for part in parts], 1, causal) for name in NAMES}


def relative_errors(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """By tensor: norm of the difference over the norm of the expected one."""
    return {
        name: float((actual[name].double() - expected[name]).norm() / expected[name].norm()) for name in NAMES
    }


def world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group
