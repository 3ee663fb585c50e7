"""AdamW with warm-up and cosine decay, and clipping by the true global gradient norm."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def build_adamw(
    masters: dict[str, nn.Parameter],
    learning_rate: float,
    weight_decay: float,
    betas: tuple[float, float],
    eps: float,
) -> torch.optim.AdamW:
    """AdamW; biases and norm weights (1-D) are not decayed.

    foreach is off: with DTensors it makes temporaries of global size (torch_facts 9).
    """
    decayed = [p for p in masters.values() if p.dim() > 1]
    others = [p for p in masters.values() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=learning_rate, betas=betas, eps=eps, foreach=False
    )


def learning_rate_at(step: int, *, peak: float, minimum: float, warmup_steps: int, total_steps: int) -> float:
    """Linear warm-up to `peak` (step 0 already learns), then cosine to `minimum` at `total_steps`."""
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return minimum + 0.5 * (peak - minimum) * (1 + math.cos(math.pi * min(1.0, progress)))


@torch.no_grad()
def global_gradient_norm(grads: list[tuple[Tensor, int]], device: torch.device) -> Tensor:
    """Norm over all parameters of all ranks: sum over the world of local square sums / replication.

    `grads` are (local gradient, number of ranks that hold this very element). -> 0-d float64.
    """
    total = torch.zeros((), dtype=torch.float64, device=device)
    for grad, replication in grads:
        total += torch.linalg.vector_norm(
            grad, dtype=torch.promote_types(grad.dtype, torch.float32)
        ).double() ** 2 / (replication)
    dist.all_reduce(total)
    return total.sqrt()


@torch.no_grad()
def clip_gradients(grads: list[Tensor], norm: Tensor, limit: float | None) -> None:
    """Scale in place so that the global norm is at most `limit`; None leaves them."""
    if limit is None:
        return
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(scale.to(grad.dtype))


def local_gradient(parameter: nn.Parameter) -> Tensor:
    """This rank's shard of a master's gradient; every parameter takes part in every step."""
    grad = parameter.grad
    assert grad is not None
    return grad.to_local() if isinstance(grad, DTensor) else grad
