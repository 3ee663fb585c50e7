"""Which device's kernels compute: a tensor's own, or in a simulation those of the plan's device.

A simulated rank of a GPU plan works on fake CPU tensors (autograd on fake CUDA tensors aborts a CPU build of
torch). So what chooses a kernel asks here instead of `tensor.device`, and gets the choice that the GPU would
make; the operators then run as shapes only. Where an operator of the step keeps other tensors on a GPU than
on a CPU, that is a row of DIFFERENCES. All others keep the same on both, by their formulas in torch's
derivatives.yaml: linear and matmul their operands, gelu, silu and relu their input or result, mul its
factors, embedding its indices. Dropout and cross-entropy are functions of our own (dropout.py,
random_field.py, vocab_parallel.py): the same tensors on every device, and no mask or generator state is kept.
What a kernel takes for itself while it runs (split sums, a sort's scratch) is no tensor of either.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

_simulated: list[str] = []


@dataclass(frozen=True)
class KernelDifference:
    """What an operator of the step keeps or makes on a GPU, and on a CPU."""

    operator: str
    choice: str
    """The model's norm or the layout's kernel with which the step has it."""
    cuda: str
    cpu: str
    source: str


DIFFERENCES = (
    KernelDifference(
        "RMSNorm",
        "rmsnorm",
        "keeps its input and one float32 a token",
        "is made of plain operators, which keep float32 forms of the input too",
        "torch derivatives.yaml: _fused_rms_norm; the composite in layer_norm.cpp",
    ),
    KernelDifference(
        "LayerNorm",
        "layernorm",
        "keeps mean and reciprocal deviation in float32",
        "keeps them in the dtype of its input",
        "torch layer_norm_kernel.cu (acc_type) and layer_norm.cpp",
    ),
    KernelDifference(
        "flash attention",
        "flash",
        "returns the log-sum-exp in float32 and a generator state that is let go",
        "returns the log-sum-exp alone",
        "torch native_functions.yaml: _scaled_dot_product_flash_attention, .._for_cpu",
    ),
    KernelDifference(
        "efficient attention",
        "efficient",
        "copies kv heads for query heads that share them; log-sum-exp in rows of 32",
        "does not exist",
        "torch derivatives.yaml: _scaled_dot_product_efficient_attention; kAlignLSE in kernel_forward.h",
    ),
)
"""Tests hold each to what is simulated for both devices."""


def differences_of(norm: str, kernel: str) -> list[str]:
    """Sentences on those that a step has."""
    return [
        f"{each.operator} on a GPU {each.cuda}; on a CPU it {each.cpu} ({each.source})"
        for each in DIFFERENCES
        if each.choice in (norm, kernel)
    ]


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


class _FusedLayerNorm(Function):
    """Shapes of torch's LayerNorm on CUDA, whose statistics are float32. For simulation only, as above."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        mean, deviation = (
            torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device) for _ in range(2)
        )
        ctx.save_for_backward(x, weight, mean, deviation)
        ctx.has_bias = bias is not None
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x, weight, *_ = ctx.saved_tensors
        return (
            torch.empty_like(x),
            torch.empty_like(weight),
            torch.empty_like(weight) if ctx.has_bias else None,
        )


def _stands_for_cuda(x: Tensor) -> bool:
    return bool(_simulated) and _simulated[-1] == "cuda" and x.device.type == "cpu"


def layer_norm(x: Tensor, size: int, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """F.layer_norm over the last dim, by the kernel of the device."""
    if _stands_for_cuda(x):
        return cast(Tensor, _FusedLayerNorm.apply(x, weight, bias))  # type: ignore[no-untyped-call]
    return F.layer_norm(x, (size,), weight, bias, eps)


def rms_norm(x: Tensor, size: int, weight: Tensor, eps: float) -> Tensor:
    """F.rms_norm over the last dim, by the kernel of the device."""
    if _stands_for_cuda(x):
        return cast(Tensor, _FusedRmsNorm.apply(x, weight))  # type: ignore[no-untyped-call]
    return F.rms_norm(x, (size,), weight, eps)
