"""Which device's kernels compute: a tensor's own, or in a simulation those of the plan's device.

A simulated rank of a GPU plan works on fake CPU tensors (autograd on fake CUDA tensors aborts a CPU build of
torch). So what chooses a kernel asks here instead of `tensor.device`, and gets the choice that the GPU would
make; the operators then run as shapes only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

_simulated: list[str] = []


@contextmanager
def kernels_of(device_type: str) -> Iterator[None]:
    """While open, kernels are chosen as for tensors on `device_type`."""
    _simulated.append(device_type)
    try:
        yield
    finally:
        _simulated.pop()


def kernel_device(device: torch.device) -> str:
    """The device type whose kernels compute: "cpu" or "cuda"."""
    return _simulated[-1] if _simulated else device.type


class _FusedRmsNorm(Function):
    """Shapes of torch's fused RMSNorm, which CUDA has and CPUs have not (aten::_fused_rms_norm).

    Keeps its input, the weight and the reciprocal root mean square of each row in float32, as the operator's
    derivative in torch's derivatives.yaml does. For simulation only: it computes nothing.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        statistics = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, statistics)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def rms_norm(x: Tensor, size: int, weight: Tensor, eps: float) -> Tensor:
    """F.rms_norm over the last dim, by the kernel of the device."""
    if _simulated and _simulated[-1] == "cuda" and x.device.type == "cpu":
        return cast(Tensor, _FusedRmsNorm.apply(x, weight))  # type: ignore[no-untyped-call]
    return F.rms_norm(x, (size,), weight, eps)
