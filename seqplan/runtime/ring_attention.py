"""Ring attention: each rank holds its queries and meets every rank's keys and values in turn.

K/V blocks travel the ring (one packed buffer, double-buffered; the next hop is under way while the block in
hand is computed) and block results are merged by their log-sum-exp (online softmax), so nothing of full
length exists. In backward K/V travel again with the gradients of the blocks: a block's dK and dV collect each
rank's part on their way home; the rank's own part never travels. Causal sequences are split in zigzag
(sequence_split.py): every hop is half a block of work on every rank.
The pair of custom operators makes each pass one operation to recompute policies, compile and FLOP counters;
ring_passes.py has their Python bodies.
Shapes: B micro-batch, S local tokens, H query heads, K kv heads, D head size.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from seqplan.planner.errors import SeqplanError
from seqplan.runtime.attention.block_masks import accumulation_dtype, require_kernel
from seqplan.runtime.attention.head_groups import number_of_groups
from seqplan.runtime.attention.ring_passes import Pass, backward, forward
from seqplan.runtime.ring import Ring


def ring_attention(
    q_BSHD: Tensor,
    k_BSKD: Tensor,
    v_BSKD: Tensor,
    *,
    group: dist.ProcessGroup | None,
    causal: bool,
    valid_BS: Tensor | None = None,
    scale: float | None = None,
    kernel: str = "flash",
    head_groups: int | None = None,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    sliding_window: int | None = None,
) -> Tensor:
    """Self-attention over the tokens of all ranks of `group`; None: of this rank alone. -> out [B, S, H, D]

    `valid_BS`: local keys that are not padding (on every rank or on none). `scale`: D ** -0.5 unless given.
    `head_groups`: times that the ring turns; None: as head_groups.py says. The last three arguments exist to
    be refused: what ring attention cannot do must never be dropped in silence.
    """
    _refuse(mask, dropout_p, sliding_window)
    require_kernel(kernel, q_BSHD.device, q_BSHD.dtype, q_BSHD.shape[-1], valid_BS is not None)
    assert q_BSHD.shape[:2] == k_BSKD.shape[:2], (q_BSHD.shape, k_BSKD.shape)
    assert k_BSKD.shape == v_BSKD.shape, (k_BSKD.shape, v_BSKD.shape)
    assert q_BSHD.dtype == k_BSKD.dtype == v_BSKD.dtype, (q_BSHD.dtype, k_BSKD.dtype, v_BSKD.dtype)
    ring = Ring(group)
    if head_groups is None:
        kv_bytes = k_BSKD.nbytes + v_BSKD.nbytes
        head_groups = number_of_groups(k_BSKD.shape[2], kv_bytes) if ring.size > 1 else 1
    numbers = (*q_BSHD.shape, k_BSKD.shape[2], head_groups, q_BSHD.itemsize, int(valid_BS is not None))
    ring.require_equal("ring attention's shape", numbers, q_BSHD.device)
    scale = q_BSHD.shape[-1] ** -0.5 if scale is None else scale
    out, _ = torch.ops.seqplan.ring_attention(
        q_BSHD, k_BSKD, v_BSKD, valid_BS, ring.group_name, causal, scale, kernel, head_groups
    )
    return cast(Tensor, out)


def _refuse(mask: Tensor | None, dropout_p: float, sliding_window: int | None) -> None:
    faults = []
    if mask is not None:
        faults.append("a mask other than causal and padding")
    if dropout_p != 0.0:
        faults.append(f"attention dropout ({dropout_p})")
    if sliding_window is not None:
        faults.append(f"a sliding window ({sliding_window})")
    if faults:
        raise SeqplanError(f"attention=ring does not support {', '.join(faults)}", "Set attention to rsa.")


@torch.library.custom_op("seqplan::ring_attention", mutates_args=())
def _forward_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    group_name: str,
    causal: bool,
    scale: float,
    kernel: str,
    head_groups: int,
) -> tuple[Tensor, Tensor]:
    return forward(q, k, v, valid, Pass(Ring.named(group_name), causal, scale, kernel, head_groups))


@torch.library.custom_op("seqplan::ring_attention_backward", mutates_args=())
def _backward_op(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    valid: Tensor | None,
    group_name: str,
    causal: bool,
    scale: float,
    kernel: str,
    head_groups: int,
) -> tuple[Tensor, Tensor, Tensor]:
    call = Pass(Ring.named(group_name), causal, scale, kernel, head_groups)
    return backward(dout, q, k, v, out, lse, valid, call)


@_forward_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    B, S, H, _D = q.shape
    return q.new_empty(q.shape), q.new_empty((B, H, S), dtype=accumulation_dtype(q.dtype))


@_backward_op.register_fake
def _(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, valid, *options = inputs
    ctx.save_for_backward(q, k, v, *output, valid)
    ctx.options = options
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # else autograd makes zeros as large as that second result


def _differentiate(ctx: Any, dout: Tensor | None, _dlse: None) -> tuple[Tensor | None, ...]:
    if dout is None:  # the result was not used
        return (None,) * (4 + len(ctx.options))
    gradients = torch.ops.seqplan.ring_attention_backward(dout, *ctx.saved_tensors, *ctx.options)
    return (*gradients, *(None,) * (1 + len(ctx.options)))


_forward_op.register_autograd(_differentiate, setup_context=_save)


@register_flop_formula(torch.ops.seqplan.ring_attention)
def _forward_flops(
    q: tuple[int, ...], k: Any, v: Any, valid: Any, group_name: str, causal: bool, *_: Any, **__: Any
) -> int:
    """What this rank computes: two matmuls with the keys of all ranks; half of them under a causal mask."""
    B, S, H, D = q
    return 2 * 2 * B * H * S * S * Ring.named(group_name).size * D // (2 if causal else 1)


@register_flop_formula(torch.ops.seqplan.ring_attention_backward)
def _backward_flops(
    dout: Any,
    q: tuple[int, ...],
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    valid: Any,
    group_name: str,
    causal: bool,
    *_: Any,
    **__: Any,
) -> int:
    """Five matmuls for the forward's two: the scores again, dP, dV, dQ and dK."""
    return 5 * _forward_flops(q, k, v, valid, group_name, causal) // 2
