"""Measures one rank's computation: matmuls and attention over sizes, and copies through its memory.

Shapes: B batch, H heads, S tokens, D head size.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from seqplan.planner.calibration.samples import AttentionSample, Dtype, MatmulSample, TrafficSample
from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import Kernel
from seqplan.runtime.block_attention import block_backward, block_forward
from seqplan.runtime.block_masks import Block, require_kernel
from seqplan.runtime.calibrate_timing import Task

DTYPES: dict[Dtype, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

# [rows, depth] x [depth, columns]: square ones, and the wide, the narrow and the shallow of a split layer.
MATMULS = {
    "cpu": (
        (128, 128, 128), (256, 256, 256), (512, 512, 512), (1024, 256, 256), (1024, 768, 256),
        (256, 1024, 256), (2048, 128, 256), (512, 64, 512), (256, 256, 1024), (1024, 1024, 512),
    ),
    "cuda": (
        (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192),
        (4096, 1024, 4096), (4096, 4096, 512), (8192, 512, 4096), (16384, 4096, 1024), (1024, 4096, 8192),
    ),
}  # fmt: skip
ATTENTION_TOKENS = {"cpu": (128, 256, 512, 1024), "cuda": (512, 1024, 2048, 4096, 8192, 16384)}
ATTENTION_HEADS = {"cpu": (4, 64), "cuda": (16, 128)}
"""Heads and head size."""

COPY_BYTES = {"cpu": (1 << 20, 8 << 20, 32 << 20), "cuda": (64 << 20, 256 << 20, 1 << 30)}

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

    def __init__(self, device: torch.device, dtype: Dtype) -> None:
        self.dtype, self.sizes = dtype, MATMULS[device.type]
        self.tasks = []
        for rows, columns, depth in self.sizes:
            x = torch.randn(rows, depth, device=device).to(DTYPES[dtype])
            weight = torch.randn(columns, depth, device=device).to(DTYPES[dtype])
            self.tasks.append(
                Task(f"matmul {dtype} {rows} x {columns} x {depth}", partial(F.linear, x, weight))
            )

    def samples(self) -> list[MatmulSample]:
        return [
            MatmulSample(dtype=self.dtype, rows=m, columns=n, depth=k, seconds=task.seconds)
            for (m, n, k), task in zip(self.sizes, self.tasks, strict=True)
        ]


class BlockAttention:
    """One causal block, forward and backward, over lengths."""

    def __init__(self, device: torch.device, dtype: Dtype, kernel: Kernel) -> None:
        self.dtype, self.lengths = dtype, ATTENTION_TOKENS[device.type]
        self.heads, self.size = ATTENTION_HEADS[device.type]
        self.tasks = []
        for tokens in self.lengths:
            shape = (1, self.heads, tokens, self.size)
            q, k, v, dout = (torch.randn(shape, device=device).to(DTYPES[dtype]) for _ in range(4))
            block = Block(kernel=kernel, causal=True, scale=self.size**-0.5)
            out, lse = block_forward(q, k, v, block)
            what = f"attention {dtype} {tokens} tokens"
            self.tasks.append(Task(what, partial(block_forward, q, k, v, block)))
            self.tasks.append(
                Task(f"{what}, backward", partial(block_backward, dout, q, k, v, out, lse, block))
            )

    def samples(self) -> list[AttentionSample]:
        pairs = zip(self.tasks[0::2], self.tasks[1::2], strict=True)
        return [
            AttentionSample(
                dtype=self.dtype,
                tokens=tokens,
                forward_flops=4.0 * self.heads * self.size * tokens * tokens / 2.0,
                forward_s=forward.seconds,
                backward_s=backward.seconds,
            )
            for tokens, (forward, backward) in zip(self.lengths, pairs, strict=True)
        ]


class Copies:
    """A copy of one tensor to another."""

    def __init__(self, device: torch.device) -> None:
        self.sizes = COPY_BYTES[device.type]
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
