"""The fused CUDA kernels of one block against the float64 reference, padded rows and merged lse included."""

from __future__ import annotations

import pytest
import torch

from seqplan.runtime.attention.block_attention import block_backward, block_forward
from seqplan.runtime.attention.block_masks import Block, finite_lse
from seqplan.runtime.ring_attention import ring_attention
from tests.runtime.attention_cases import Case, reference, relative_errors, with_gradients

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""float32 kernels may use TF32 (2**-11); the others round to 2**-9 and 2**-12."""


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 4, 12])
@pytest.mark.parametrize(
    ("kernel", "dtype", "padding"),
    [
        ("flash", torch.bfloat16, "none"),
        ("flash", torch.float16, "none"),
        ("efficient", torch.float32, "none"),
        ("efficient", torch.bfloat16, "holes"),
        ("efficient", torch.float32, "left"),
        ("efficient", torch.float32, "all"),
        ("math", torch.bfloat16, "left"),
    ],
)
def test_kernels_equal_the_reference(
    kernel: str, dtype: torch.dtype, padding: str, kv_heads: int, causal: bool
) -> None:
    case = Case(causal, kv_heads, heads=12, seq_len=72, head_dim=16, padding=padding, dtype=dtype)
    q, k, v, cotangent = (x.cuda() for x in case.inputs())
    padded = case.padded()
    valid = None if padded is None else padded.cuda()
    actual = with_gradients(
        lambda q, k, v: ring_attention(q, k, v, group=None, causal=causal, valid_BS=valid, kernel=kernel),
        q,
        k,
        v,
        cotangent,
    )
    errors = relative_errors({name: x.cpu() for name, x in actual.items()}, reference(case))
    assert max(errors.values()) <= TOLERANCE[dtype], errors


@pytest.mark.parametrize(("kernel", "dtype"), [("flash", torch.bfloat16), ("efficient", torch.float32)])
def test_backward_takes_the_lse_of_whole_rows(kernel: str, dtype: torch.dtype) -> None:
    """Block by block with the final out and lse; the lengths are no multiples of the kernels' tiles."""
    case = Case(False, 4, heads=12, seq_len=72, head_dim=16, dtype=dtype)
    q, k, v, cotangent = (x.cuda().transpose(1, 2) for x in case.inputs())
    out, lse = block_forward(q, k, v, Block("math", 0.25))
    halves = [
        block_backward(cotangent, q, k[:, :, part], v[:, :, part], out, finite_lse(lse), Block(kernel, 0.25))
        for part in (slice(0, 36), slice(36, 72))
    ]
    expected = reference(case)
    dq = (halves[0][0].double() + halves[1][0].double()).transpose(1, 2).cpu()
    dk, dv = (torch.cat([half[i] for half in halves], 2).transpose(1, 2).cpu() for i in (1, 2))
    errors = relative_errors({"out": out.transpose(1, 2).cpu(), "dq": dq, "dk": dk, "dv": dv}, expected)
    assert max(errors.values()) <= TOLERANCE[dtype], errors
