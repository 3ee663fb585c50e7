"""The vocabulary split over tp: embedding look-up and cross-entropy without ever gathering the logits.

Shapes: B micro-batch, S tokens of this sp rank, H hidden, V vocabulary rows on this rank (padded rows of the
last ranks included), N = B * S tokens. Source: Shoeybi et al. 1909.08053 section 3.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

IGNORED_LABEL = -100
"""A label that is not counted (torch's convention for cross_entropy)."""

CHUNK_ELEMENTS = 1 << 22
"""Logits that are handled in float32 at once (16 MiB): bounds the loss's working memory."""


def vocab_embedding(tokens_BS: Tensor, weight_VH: Tensor, first_row: int) -> Tensor:
    """Partial embedding: rows of this rank, zeros for tokens of other ranks. Sum it over tp. -> [B, S, H]."""
    local = tokens_BS - first_row
    foreign = (local < 0) | (local >= weight_VH.shape[0])
    out = F.embedding(local.masked_fill(foreign, 0), weight_VH)
    return out.masked_fill(foreign.unsqueeze(-1), 0.0)


class _VocabCrossEntropy(Function):
    """Sum of -log softmax(logits)[label] over counted tokens, the softmax spanning all tp ranks.

    Forward: all-reduce of the row maximum, then of (sum of exponentials, target logit), over tp.
    Backward: local only, once (it overwrites the logits). Kept: the logits in their own dtype, the row's
    log-sum-exp.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits_NV: Tensor,
        labels_N: Tensor,
        first_row: int,
        vocab_size: int,
        group: dist.ProcessGroup,
    ) -> Tensor:
        wide = torch.promote_types(logits_NV.dtype, torch.float32)
        tokens, rows = logits_NV.shape
        real_rows = min(max(vocab_size - first_row, 0), rows)  # padded rows take no part
        maximum = torch.full((tokens,), float("-inf"), dtype=wide, device=logits_NV.device)
        if real_rows:
            maximum = logits_NV[:, :real_rows].amax(dim=1).to(wide)
        if group.size() > 1:
            dist.all_reduce(maximum, op=dist.ReduceOp.MAX, group=group)
        counted = labels_N != IGNORED_LABEL
        local = labels_N - first_row
        mine = counted & (local >= 0) & (local < real_rows)
        local = local.masked_fill(~mine, 0)
        sums = torch.zeros(2, tokens, dtype=wide, device=logits_NV.device)
        for part in _chunks(tokens, rows):
            sums[0, part] = _difference(logits_NV[part, :real_rows], maximum[part, None]).exp_().sum(dim=1)
        target = logits_NV.gather(1, local[:, None]).squeeze(1).to(wide) - maximum
        sums[1] = target.masked_fill(~mine, 0.0)
        if group.size() > 1:
            dist.all_reduce(sums, group=group)
        log_sum = sums[0].log()
        loss = (log_sum - sums[1]).masked_fill(~counted, 0.0).sum()
        ctx.save_for_backward(logits_NV, maximum + log_sum, local, mine, counted)
        ctx.real_rows = real_rows
        return loss

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits_NV, lse_N, local_N, mine_N, counted_N = ctx.saved_tensors
        # Written over the logits, which nothing else needs: no second tensor of their size exists.
        scale_N = grad_loss.to(lse_N.dtype) * counted_N
        for part in _chunks(*logits_NV.shape):
            probability = _difference(logits_NV[part, : ctx.real_rows], lse_N[part, None]).exp_()
            probability *= scale_N[part, None]
            if ctx.real_rows:
                hit = -(scale_N[part] * mine_N[part])
                probability.scatter_add_(1, local_N[part, None], hit[:, None])
            logits_NV[part, : ctx.real_rows].copy_(probability)
            logits_NV[part, ctx.real_rows :] = 0.0
            del probability  # before the next part makes its own
        return logits_NV, None, None, None, None


def _difference(x: Tensor, y: Tensor) -> Tensor:
    """x - y in the dtype of y, making one tensor of the size of x."""
    return x - y if x.dtype == y.dtype else x.to(y.dtype).sub_(y)


def _chunks(tokens: int, rows: int) -> list[slice]:
    step = max(1, CHUNK_ELEMENTS // max(rows, 1))
    return [slice(start, min(start + step, tokens)) for start in range(0, tokens, step)]


def vocab_cross_entropy(
    logits_BSV: Tensor, labels_BS: Tensor, first_row: int, vocab_size: int, group: dist.ProcessGroup
) -> Tensor:
    """Sum of the losses of this rank's counted tokens, equal on all tp ranks. Divide by the global count.

    logits [B, S, V] of rows first_row .. first_row + V; labels [B, S] int64, IGNORED_LABEL where not counted.
    """
    arguments = (logits_BSV.flatten(0, 1), labels_BS.flatten(), first_row, vocab_size, group)
    return cast(Tensor, _VocabCrossEntropy.apply(*arguments))  # type: ignore[no-untyped-call]
