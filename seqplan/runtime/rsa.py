"""Ring self-attention as published (Li et al., arXiv 2105.13120): whole rows of scores, dropout, any mask.

Keys go round the ring once to fill this rank's rows of scores, values once to use them (rsa_passes.py). The
score rows [B, H, S, L] are the only tensor of full length. Unlike the authors' code: dK and dV travel home
with the ring (no full-length gradient, no all-reduce, no division by the ring's size), scores are scaled by
the head size, a causal mask splits the sequence in zigzag and saves work, hops overlap with the matmuls.
Shapes: B micro-batch, S local tokens, L tokens of all ranks, H query heads, K kv heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from seqplan.planner.errors import SeqplanError
from seqplan.runtime.attention.head_groups import number_of_groups
from seqplan.runtime.attention.rsa_passes import Pass, backward, forward
from seqplan.runtime.attention.rsa_scores import Dropout, pieces
from seqplan.runtime.ring import Ring


@dataclass(frozen=True)
class AttentionDropout:
    """Dropout on attention probabilities: a function of global indices, the same on every layout."""

    seed: int
    p: float
    batch_rows: Tensor
    """[B] int64: global row ids of the micro-batch."""
    head_offset: int
    """Global number of this rank's first query head."""


def rsa(
    q_BSHD: Tensor,
    k_BSKD: Tensor,
    v_BSKD: Tensor,
    *,
    group: dist.ProcessGroup | None,
    causal: bool,
    valid_BS: Tensor | None = None,
    mask: Tensor | None = None,
    scale: float | None = None,
    dropout: AttentionDropout | None = None,
    head_groups: int | None = None,
    sliding_window: int | None = None,
) -> Tensor:
    """Self-attention over the tokens of all ranks of `group`; None: of this rank alone. -> out [B, S, H, D]

    `valid_BS`: local keys that are not padding (on every rank or on none). `mask`: added to the scores,
    [B or 1, H or 1, S, L], this rank's rows, columns in global order. `scale`: D ** -0.5 unless given.
    `head_groups`: times that the ring turns; None: as head_groups.py says.
    """
    B, S, H, D = q_BSHD.shape
    ring = Ring(group)
    if sliding_window is not None:
        raise SeqplanError(
            f"attention=rsa takes no sliding window ({sliding_window}) by itself", "Give it as a mask."
        )
    if dropout is not None and not 0.0 <= dropout.p < 1.0:
        raise SeqplanError(f"attention dropout {dropout.p} is no probability below 1", "Set it in [0, 1).")
    assert q_BSHD.shape[:2] == k_BSKD.shape[:2], (q_BSHD.shape, k_BSKD.shape)
    assert k_BSKD.shape == v_BSKD.shape, (k_BSKD.shape, v_BSKD.shape)
    assert q_BSHD.dtype == k_BSKD.dtype == v_BSKD.dtype, (q_BSHD.dtype, k_BSKD.dtype, v_BSKD.dtype)
    if mask is not None:
        if mask.requires_grad or not mask.is_floating_point():
            raise SeqplanError(
                "attention=rsa adds its mask to the scores: it must be floating-point and without gradient"
            )
        rows, columns = (S, S * ring.size)
        assert mask.dim() == 4, mask.shape
        assert mask.shape[0] in (1, B), mask.shape
        assert mask.shape[1] in (1, H), mask.shape
        assert mask.shape[2:] == (rows, columns), (mask.shape, rows, columns)
    if head_groups is None:
        kv_bytes = k_BSKD.nbytes + v_BSKD.nbytes
        head_groups = number_of_groups(k_BSKD.shape[2], kv_bytes) if ring.size > 1 else 1
    numbers = (*q_BSHD.shape, k_BSKD.shape[2], head_groups, q_BSHD.itemsize, int(valid_BS is not None))
    ring.require_equal("rsa's shape", numbers, q_BSHD.device)
    scale = D**-0.5 if scale is None else scale
    drop = dropout if dropout is not None and dropout.p > 0.0 else None
    out, _ = torch.ops.seqplan.rsa(
        q_BSHD,
        k_BSKD,
        v_BSKD,
        valid_BS,
        mask,
        None if drop is None else drop.batch_rows,
        ring.group_name,
        causal,
        scale,
        0.0 if drop is None else drop.p,
        0 if drop is None else drop.seed,
        0 if drop is None else drop.head_offset,
        head_groups,
    )
    return cast(Tensor, out)


def _pass(
    rows: Tensor | None,
    group_name: str,
    causal: bool,
    scale: float,
    p: float,
    seed: int,
    head_offset: int,
    head_groups: int,
) -> Pass:
    dropout = None if rows is None else Dropout(seed, p, rows, head_offset)
    return Pass(Ring.named(group_name), causal, scale, dropout, head_groups)


@torch.library.custom_op("seqplan::rsa", mutates_args=())
def _forward_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    mask: Tensor | None,
    batch_rows: Tensor | None,
    group_name: str,
    causal: bool,
    scale: float,
    p: float,
    seed: int,
    head_offset: int,
    head_groups: int,
) -> tuple[Tensor, Tensor]:
    call = _pass(batch_rows, group_name, causal, scale, p, seed, head_offset, head_groups)
    return forward(q, k, v, valid, mask, call)


@torch.library.custom_op("seqplan::rsa_backward", mutates_args=())
def _backward_op(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    probabilities: Tensor,
    batch_rows: Tensor | None,
    group_name: str,
    causal: bool,
    scale: float,
    p: float,
    seed: int,
    head_offset: int,
    head_groups: int,
) -> tuple[Tensor, Tensor, Tensor]:
    call = _pass(batch_rows, group_name, causal, scale, p, seed, head_offset, head_groups)
    return backward(dout, q, k, v, out, probabilities, call)


@_forward_op.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, valid: Any, mask: Any, batch_rows: Any, group_name: str, *options: Any
) -> tuple[Tensor, Tensor]:
    (B, S, H, _D), K, groups = q.shape, k.shape[2], options[-1]
    kept = (groups, B * K // groups, S * (H // K), S * Ring.named(group_name).size)
    return q.new_empty(q.shape), q.new_empty(kept)


@_backward_op.register_fake
def _(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, _valid, _mask, batch_rows, *options = inputs
    ctx.save_for_backward(q, k, v, *output, batch_rows)
    ctx.options = options
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # else autograd makes zeros as large as that second result


def _differentiate(ctx: Any, dout: Tensor | None, _dprobabilities: None) -> tuple[Tensor | None, ...]:
    if dout is None:  # the result was not used
        return (None,) * (6 + len(ctx.options))
    gradients = torch.ops.seqplan.rsa_backward(dout, *ctx.saved_tensors, *ctx.options)
    return (*gradients, *(None,) * (3 + len(ctx.options)))


_forward_op.register_autograd(_differentiate, setup_context=_save)


@register_flop_formula(torch.ops.seqplan.rsa)
def _forward_flops(
    q: tuple[int, ...],
    k: Any,
    v: Any,
    valid: Any,
    mask: Any,
    rows: Any,
    group_name: str,
    causal: bool,
    *_: Any,
    **__: Any,
) -> int:
    """What this rank computes: two matmuls over the rectangles of scores that somebody sees."""
    B, S, H, D = q
    ring = Ring.named(group_name)
    seen: int = sum(
        (S - piece.start) * (piece.keys.stop - piece.keys.start)
        for source in range(ring.size)
        for piece in pieces(S, ring.size, ring.rank, source, causal)
    )
    return 2 * 2 * B * H * seen * D


@register_flop_formula(torch.ops.seqplan.rsa_backward)
def _backward_flops(
    dout: Any,
    q: tuple[int, ...],
    k: Any,
    v: Any,
    out: Any,
    probabilities: Any,
    rows: Any,
    group_name: str,
    causal: bool,
    *_: Any,
    **__: Any,
) -> int:
    """Four matmuls for the forward's two: dV, dP, dQ and dK; the probabilities were kept."""
    return 2 * _forward_flops(q, k, v, None, None, rows, group_name, causal)
