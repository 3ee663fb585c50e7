"""Hidden dropout whose mask is a function of the global token and feature, and of nothing else.

Tensor-parallel ranks that hold the same activations draw the same mask, ranks with other tokens another
one, and every layout the same; nothing is kept for backward, which makes the mask again.
Shapes: B micro-batch, R tokens on this rank, H features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from seqplan.runtime.random_field import keep_mask, seed_of


@dataclass(frozen=True)
class DropoutPlace:
    """Identity of the tokens in hand: everything that a mask may depend on."""

    seed: int
    batch_rows_B: Tensor
    positions_R: Tensor

    def at(self, *site: str | int) -> DropoutPlace:
        """The same tokens at one site of the model, e.g. (layer 3, "mlp")."""
        return DropoutPlace(seed_of(self.seed, *site), self.batch_rows_B, self.positions_R)

    def token_ids(self) -> Tensor:
        """One number for each token of the step, [B * R]; positions stay below 2 ** 32."""
        return (self.batch_rows_B[:, None] * (1 << 32) + self.positions_R[None, :]).flatten()


class _HashDropout(Function):
    """Forward: x * mask / (1 - p); backward: the same mask, made again."""

    @staticmethod
    def forward(ctx: Any, x_BRH: Tensor, probability: float, place: DropoutPlace) -> Tensor:
        ctx.probability, ctx.place = probability, place
        return _masked(x_BRH, probability, place)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _masked(grad, ctx.probability, ctx.place), None, None


def _masked(x_BRH: Tensor, probability: float, place: DropoutPlace) -> Tensor:
    features = torch.arange(x_BRH.shape[-1], device=x_BRH.device)
    keep = keep_mask(place.seed, place.token_ids(), features, probability).view(x_BRH.shape)
    return (x_BRH * keep).mul_(1.0 / (1.0 - probability))


def dropout(x_BRH: Tensor, probability: float, place: DropoutPlace | None) -> Tensor:
    """Dropout at `place`; the identity when the probability is 0 or no place is given (evaluation)."""
    if probability == 0.0 or place is None:
        return x_BRH
    return cast(Tensor, _HashDropout.apply(x_BRH, probability, place))  # type: ignore[no-untyped-call]
