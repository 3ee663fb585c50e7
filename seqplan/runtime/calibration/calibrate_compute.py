"""Measures one rank's computation: matmuls and attention over sizes, and copies through its memory.

Shapes: B batch, H heads, S tokens, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from seqplan.planner.calibration.samples import AttentionSample, Dtype, MatmulSample, TrafficSample
from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import Kernel
from seqplan.runtime.attention.block_attention import block_backward, block_forward
from seqplan.runtime.attention.block_masks import Block, require_kernel
from seqplan.runtime.calibration.calibrate_sizes import Sizes
from seqplan.runtime.calibration.calibrate_timing import InTurn, Task

DTYPES: dict[Dtype, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

HEAD_DIM = 64


def usable_kernels(device: torch.device) -> dict[Dtype, tuple[Kernel, ...]]:
    """What the runtime's attention can do here, best first, by trying it; a dtype without any is left out."""
    found: dict[Dtype, tuple[Kernel, ...]] = {}
    names: tuple[Kernel, ...] = ("flash", "efficient", "math")
    for name, dtype in DTYPES.items():
        if name == "fp16" and device.type == "cpu":
            continue  # torch's fp16 matmul on CPUs is a hundred times slower than fp32
        works = tuple(kernel for kernel in names if _works(kernel, device, dtype))
        if works:
            found[name] = works
    return found


def _works(kernel: Kernel, device: torch.device, dtype: torch.dtype) -> bool:
    try:
        require_kernel(kernel, device, dtype, HEAD_DIM, padded=False)
        q = torch.randn(1, 1, 32, HEAD_DIM, device=device).to(dtype)
        block_forward(q, q, q, Block(kernel=kernel, causal=True, scale=0.1))
    except (SeqplanError, RuntimeError):
        return False
    return True


class Matmuls:
    """A linear's matmul over sizes."""

    def __init__(self, device: torch.device, dtype: Dtype, sizes: Sizes) -> None:
        self.dtype, self.sizes = dtype, sizes.matmuls
        self.tasks = []
        for rows, columns, depth in self.sizes:
            make = _linear(rows, columns, depth, DTYPES[dtype], device)
            size = DTYPES[dtype].itemsize * (rows * depth + depth * columns + rows * columns)
            call = InTurn(make, size, device.type)
            self.tasks.append(Task(f"matmul {dtype} {rows} x {columns} x {depth}", call))

    def samples(self) -> list[MatmulSample]:
        return [
            MatmulSample(dtype=self.dtype, rows=m, columns=n, depth=k, seconds=task.seconds)
            for (m, n, k), task in zip(self.sizes, self.tasks, strict=True)
        ]


def _linear(
    rows: int, columns: int, depth: int, dtype: torch.dtype, device: torch.device
) -> Callable[[], Callable[[], object]]:
    """Makes the matmul on operands of its own. Copies: drawing random numbers takes ten times as long, and
    for all operands of a calibration took half a minute of four ranks on two cores."""
    x, weight = torch.randn(rows, depth, device=device), torch.randn(columns, depth, device=device)
    x, weight = x.to(dtype), weight.to(dtype)
    return lambda: partial(F.linear, x.clone(), weight.clone())


class BlockAttention:
    """One causal block, forward and backward, over lengths and head sizes."""

    def __init__(self, device: torch.device, dtype: Dtype, kernel: Kernel, sizes: Sizes) -> None:
        self.dtype, self.shapes = dtype, sizes.attention
        self.tasks = []
        for tokens, heads, size in self.shapes:
            shape, what = (1, heads, tokens, size), f"attention {dtype} {tokens} tokens, heads of {size}"
            for backward in (False, True):
                make = _block(shape, DTYPES[dtype], device, kernel, backward)
                call = InTurn(make, 4.0 * math.prod(shape) * DTYPES[dtype].itemsize, device.type)
                self.tasks.append(Task(what + ", backward" * backward, call))

    def samples(self) -> list[AttentionSample]:
        pairs = zip(self.tasks[0::2], self.tasks[1::2], strict=True)
        return [
            AttentionSample(
                dtype=self.dtype,
                tokens=tokens,
                head_dim=size,
                forward_flops=4.0 * heads * size * tokens * tokens / 2.0,
                forward_s=forward.seconds,
                backward_s=backward.seconds,
            )
            for (tokens, heads, size), (forward, backward) in zip(self.shapes, pairs, strict=True)
        ]


def _block(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, kernel: Kernel, backward: bool
) -> Callable[[], Callable[[], object]]:
    """Makes the block on operands of its own."""
    q, k, v, dout = (torch.randn(shape, device=device).to(dtype) for _ in range(4))
    block = Block(kernel=kernel, causal=True, scale=shape[-1] ** -0.5)
    if not backward:
        return lambda: partial(block_forward, q.clone(), k.clone(), v.clone(), block)
    out, lse = block_forward(q, k, v, block)

    def make() -> Callable[[], object]:
        ours = (dout.clone(), q.clone(), k.clone(), v.clone(), out.clone(), lse.clone())
        return partial(block_backward, *ours, block)

    return make


class Copies:
    """A copy of one tensor to another."""

    def __init__(self, device: torch.device, sizes: Sizes) -> None:
        self.sizes = sizes.copy_bytes
        self.tasks = []
        for size_bytes in self.sizes:
            source = torch.zeros(size_bytes // 4, device=device)
            self.tasks.append(
                Task(f"copy {size_bytes >> 20} MiB", partial(torch.ones_like(source).copy_, source))
            )

    def samples(self) -> list[TrafficSample]:
        return [
            TrafficSample(kind="copy", moved_bytes=2.0 * size, seconds=task.seconds)
            for size, task in zip(self.sizes, self.tasks, strict=True)
        ]
