"""Tensor parallelism over local tensors: the collective pairs and the linear layers built on them.

Weights are DTensors on the tp mesh (so that ZeRO, norms and checkpoints know their global shape); the
computation uses their local shards and the collectives below, which torch's DTensor would spend most of
a small layer's time to derive (torch_facts: -61 % CPU at 64 features).

Shapes: B micro-batch, S tokens of this sp rank, R tokens of the residual stream on this rank
(S, or S/tp under tp_sequence_parallel), I input features, O output features on this rank.
Source: Shoeybi et al. 1909.08053 (f and g), Korthikanti et al. 2205.05198 (g-bar, sequence parallelism).
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

Group = dist.ProcessGroup

# torch 2.13 renamed these two; older versions know only the second name.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class _CopyToTp(Function):
    """Forward: identity; backward: all-reduce over tp. Megatron's f."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _ReduceFromTp(Function):
    """Forward: all-reduce over tp; backward: identity. Megatron's g."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        # In place: what made x (a linear, an embedding) does not keep its result.
        ctx.mark_dirty(x)
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _ReduceScatterTokens(Function):
    """Forward: reduce-scatter along tokens over tp; backward: all-gather. Korthikanti's g-bar."""

    @staticmethod
    def forward(ctx: Any, x_BSO: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _reduce_scatter_tokens(x_BSO, group)

    @staticmethod
    def backward(ctx: Any, grad_BRO: Tensor) -> tuple[Tensor, None]:
        return _all_gather_tokens(grad_BRO, ctx.group), None


class _TokenShardedLinears(Function):
    """Column-parallel linears that read tokens sharded over tp.

    Forward: all-gather along tokens, then x W^T + b for each weight. Backward: all-gather again (only the
    shard is kept), weight gradients locally, input gradient by reduce-scatter along tokens.
    """

    @staticmethod
    def forward(
        ctx: Any, x_BRI: Tensor, group: Group, count: int, *parameters: Tensor | None
    ) -> tuple[Tensor, ...]:
        weights, biases = parameters[:count], parameters[count:]
        x_BSI = _all_gather_tokens(x_BRI, group)
        outputs = tuple(F.linear(x_BSI, cast(Tensor, w), b) for w, b in zip(weights, biases, strict=True))
        ctx.group, ctx.count = group, count
        ctx.has_bias = [bias is not None for bias in biases]
        ctx.save_for_backward(x_BRI, *cast("tuple[Tensor, ...]", weights))
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_BRI, *weights = ctx.saved_tensors
        x_BSI = _all_gather_tokens(x_BRI, ctx.group)
        grad_x = torch.zeros_like(x_BSI)
        sum_NI = grad_x.flatten(0, 1)  # added to in place: no second tensor of its size
        weight_grads: list[Tensor] = []
        bias_grads: list[Tensor | None] = []
        for grad, weight, has_bias in zip(grads, weights, ctx.has_bias, strict=True):
            sum_NI.addmm_(grad.flatten(0, 1), weight)
            weight_grads.append(grad.flatten(0, 1).t() @ x_BSI.flatten(0, 1))
            bias_grads.append(grad.flatten(0, 1).sum(0) if has_bias else None)
        del x_BSI
        return (_reduce_scatter_tokens(grad_x, ctx.group), None, None, *weight_grads, *bias_grads)


def _all_gather_tokens(x_BRI: Tensor, group: Group) -> Tensor:
    """[B, R, I] on each rank -> [B, R * tp, I], in rank order along tokens."""
    size = group.size()
    batch, tokens, features = x_BRI.shape
    gathered = x_BRI.new_empty(size * batch, tokens, features)
    _all_gather_single(gathered, x_BRI.contiguous(), group=group)
    return gathered.view(size, batch, tokens, features).transpose(0, 1).reshape(batch, -1, features)


def _reduce_scatter_tokens(x_BSO: Tensor, group: Group) -> Tensor:
    """[B, S, O] partial sums -> [B, S / tp, O], the sum of this rank's tokens."""
    size = group.size()
    batch, tokens, features = x_BSO.shape
    by_rank = x_BSO.reshape(batch, size, tokens // size, features).transpose(0, 1)
    mine = x_BSO.new_empty(batch, tokens // size, features)
    _reduce_scatter_single(mine, by_rank.reshape(size * batch, tokens // size, features), group=group)
    return mine


def copy_to_tp(x: Tensor, group: Group) -> Tensor:
    """Forward: identity; backward: all-reduce over tp."""
    return x if group.size() == 1 else cast(Tensor, _CopyToTp.apply(x, group))  # type: ignore[no-untyped-call]


def reduce_from_tp(x_BSO: Tensor, group: Group, tokens_sharded: bool) -> Tensor:
    """Sum of partial results over tp: every token on every rank, or this rank's S/tp tokens."""
    if group.size() == 1:
        return x_BSO
    if tokens_sharded:
        return cast(Tensor, _ReduceScatterTokens.apply(x_BSO, group))  # type: ignore[no-untyped-call]
    return cast(Tensor, _ReduceFromTp.apply(x_BSO, group))  # type: ignore[no-untyped-call]


def column_linears(
    x_BRI: Tensor, weights: list[Tensor], biases: list[Tensor | None], group: Group, tokens_sharded: bool
) -> list[Tensor]:
    """Several linears of one input, output features split over tp: [B, R, I] -> [B, S, O] each."""
    if group.size() > 1 and tokens_sharded:
        arguments = (x_BRI, group, len(weights), *weights, *biases)
        return list(_TokenShardedLinears.apply(*arguments))  # type: ignore[no-untyped-call]
    x_BSI = copy_to_tp(x_BRI, group)
    return [F.linear(x_BSI, weight, bias) for weight, bias in zip(weights, biases, strict=True)]


def row_linear(
    x_BSI: Tensor, weight: Tensor, bias: Tensor | None, group: Group, tokens_sharded: bool
) -> Tensor:
    """Linear whose input features are split over tp: [B, S, I] -> [B, R, O]; the bias joins after the sum."""
    if group.size() == 1:
        return F.linear(x_BSI, weight, bias)
    y_BRO = reduce_from_tp(F.linear(x_BSI, weight), group, tokens_sharded)
    return y_BRO if bias is None else y_BRO + bias
