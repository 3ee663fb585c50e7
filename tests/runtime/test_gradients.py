"""Every axis at once: loss, gradient norm and every parameter's gradient equal one process in float64.

The truth is tests/runtime/reference_model.py, written without the runtime. Rows have unequal lengths and
unequal counts of labels, so an average over ranks instead of a sum over tokens fails here; a gradient that is
off by 1/N anywhere is off by more than a thousand million times the tolerance.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.train_spec import TrainSpec
from seqplan.runtime.modules import local
from seqplan.runtime.weights import local_ranges
from tests.ranks import run_ranks
from tests.runtime import parity
from tests.runtime.reference_model import gradients, make_batch

pytestmark = pytest.mark.ranks

WORLD = 8
ROWS, SEQ_LEN = 16, 32
SEED = 3
RELATIVE = 1e-9
"""Of a gradient's norm (at least 1e-3 of the global norm); float64 rounding gives about 1e-15."""
FLOAT32_RELATIVE = 1e-4
"""float32 rounding through 8 layers gives about 3e-6."""


def qwen_like() -> ModelSpec:
    """Norms of q and k, whose gradients each tp rank has for its own heads only; biases of q, k and v."""
    return parity.decoder(num_layers=2, qk_norm="per_head", qkv_bias=True)


def unusual() -> ModelSpec:
    """A scale of the scores that is not the usual one, positions that begin at row 2, an embedding norm."""
    return parity.gpt2_like(
        num_layers=2, attention_scale=0.3, position_rows=66, max_position_embeddings=64, embedding_norm=True
    )


MODELS = {
    "decoder": parity.decoder,
    "encoder": parity.encoder,
    "gpt2": parity.gpt2_like,
    "qwen": qwen_like,
    "unusual": unusual,
}

Case = tuple[tuple[int, int, int, int], dict[str, Any]]


def errors_of_layouts(
    rank: int, world_size: int, kind: str, cases: list[Case], dtype: torch.dtype, padded: bool
) -> list[tuple[float, float, float, str]]:
    """On each rank and for each case: relative error of loss, of the norm, worst gradient error, its name."""
    model = MODELS[kind]()
    batch = make_batch(model, ROWS, SEQ_LEN, padded)
    loss, reference = gradients(model, batch, SEED, torch.float64)
    norm = math.sqrt(sum(float(g.pow(2).sum()) for g in reference.values()))
    out = []
    for degrees, changes in cases:
        layout = parity.make_layout(model, *degrees, **changes)
        trainer, micro_batches = parity.new_trainer(model, layout, batch, dtype, seed=SEED)
        measured, tokens = trainer.compute_gradients(micro_batches, step=0)
        assert tokens == int((batch.labels != -100).sum())
        worst, name = parity.worst_gradient_error(trainer, reference)
        out.append((abs(measured / loss - 1), abs(float(trainer.gradient_norm()) / norm - 1), worst, name))
    return out


def check(
    world_size: int,
    kind: str,
    cases: list[Case],
    dtype: torch.dtype = torch.float64,
    padded: bool = True,
    relative: float = RELATIVE,
) -> None:
    results = run_ranks(world_size, errors_of_layouts, kind, cases, dtype, padded, timeout_s=240)
    for rank, errors in enumerate(results):
        for case, (loss, norm, worst, name) in zip(cases, errors, strict=True):
            assert loss <= relative, f"rank {rank} {case}: loss off by {loss:.1e}"
            assert norm <= relative, f"rank {rank} {case}: norm off by {norm:.1e}"
            assert worst <= relative, f"rank {rank} {case}: gradient of {name} off by {worst:.1e}"


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
@pytest.mark.parametrize("attention", ["ring", "rsa"])
def test_every_factorization_of_eight_ranks(kind: str, attention: str) -> None:
    degrees = parity.factorizations(WORLD)
    assert len(degrees) == 20
    plain = {"attention": "none"} if attention == "ring" else {"attention": "rsa"}
    check(WORLD, kind, [(d, {"attention": attention} if d[3] > 1 else plain) for d in degrees])


def test_zero_recompute_and_token_sharded_tp() -> None:
    check(
        WORLD,
        "decoder",
        [
            ((2, 2, 1, 2), {"zero_stage": 2}),
            ((2, 2, 2, 1), {"zero_stage": 3}),
            ((2, 1, 2, 2), {"zero_stage": 3, "recompute": "full"}),
            ((1, 2, 2, 2), {"zero_stage": 3, "recompute": "full", "tp_sequence_parallel": True}),
            ((1, 2, 1, 4), {"recompute": "full", "recompute_layers": 2}),
            ((1, 1, 4, 2), {"tp_sequence_parallel": True}),
            ((2, 2, 1, 2), {"stage_layers": (3, 5)}),
            ((2, 1, 1, 4), {"mesh_order": ("sp", "tp", "dp", "pp"), "zero_stage": 3}),
            ((2, 2, 2, 1), {"micro_batch_size": 1}),
            ((1, 2, 2, 2), {"kernel": "math"}),
        ],
    )


def test_encoder_under_zero_and_token_sharded_tp() -> None:
    check(
        WORLD,
        "encoder",
        [
            ((2, 2, 1, 2), {"zero_stage": 3, "recompute": "full"}),
            ((1, 2, 2, 2), {"tp_sequence_parallel": True, "attention": "rsa"}),
            ((2, 1, 2, 2), {"zero_stage": 2, "tp_sequence_parallel": True}),
        ],
    )


def test_gpt2_like_decoder() -> None:
    check(WORLD, "gpt2", [((2, 2, 1, 2), {}), ((1, 2, 2, 2), {"zero_stage": 3}), ((1, 1, 2, 4), {})])


def test_float32_takes_other_collectives() -> None:
    # float32 on gloo refuses ReduceOp.PREMUL_SUM, which float64 never asks for (torch_facts 10).
    cases: list[Case] = [
        ((2, 1, 2, 2), {"zero_stage": 0}),
        ((2, 2, 1, 2), {"zero_stage": 2}),
        ((2, 1, 2, 2), {"zero_stage": 3}),
        ((1, 2, 2, 2), {"attention": "rsa", "tp_sequence_parallel": True}),
    ]
    check(WORLD, "decoder", cases, torch.float32, relative=FLOAT32_RELATIVE)


def test_norms_of_queries_and_keys_under_tp() -> None:
    cases: list[Case] = [
        ((1, 1, 2, 2), {}),
        ((1, 2, 2, 1), {"tp_sequence_parallel": True}),
        ((2, 1, 2, 1), {"zero_stage": 3}),
    ]
    check(4, "qwen", cases)


def test_without_padding() -> None:
    # Such a batch carries no mask at all.
    check(2, "decoder", [((1, 1, 1, 2), {}), ((1, 2, 1, 1), {})], padded=False)
    check(2, "encoder", [((1, 1, 1, 2), {}), ((2, 1, 1, 1), {})], padded=False)


def test_what_few_decoders_have() -> None:
    cases: list[Case] = [((1, 1, 1, 2), {"attention": attention}) for attention in ("ring", "rsa")]
    check(2, "unusual", [*cases, ((1, 1, 2, 1), {})])


def bf16_step(rank: int, world_size: int, zero_stage: int) -> tuple[float, float, float]:
    """Loss error, norm error and worst gradient error of a bf16 layout against float64."""
    model = parity.decoder()
    batch = make_batch(model, ROWS, SEQ_LEN, padded=True)
    loss, reference = gradients(model, batch, SEED, torch.float64)
    layout = parity.make_layout(model, 2, 1, 1, 2, precision="bf16", zero_stage=zero_stage)
    train = TrainSpec(seq_len=SEQ_LEN, global_batch_size=ROWS, precision="bf16")
    trainer, micro_batches = parity.new_trainer(model, layout, batch, None, train, seed=SEED)
    measured, _ = trainer.compute_gradients(micro_batches, step=0)
    for master in trainer.states.masters.values():
        assert master.dtype == torch.float32
        assert master.grad is not None
        assert master.grad.dtype == torch.float32
    norm = math.sqrt(sum(float(g.pow(2).sum()) for g in reference.values()))
    return (
        abs(measured / loss - 1),
        abs(float(trainer.gradient_norm()) / norm - 1),
        parity.worst_gradient_error(trainer, reference)[0],
    )


@pytest.mark.parametrize("zero_stage", [0, 2, 3])
def test_bf16_keeps_fp32_masters_and_gradients(zero_stage: int) -> None:
    # bf16 has 8 bits: 4e-3 a rounding. A factor of 1/2 in any gradient would show as 0.5.
    for loss, norm, worst in run_ranks(4, bf16_step, zero_stage, timeout_s=120):
        assert loss < 5e-3
        assert norm < 2e-2
        assert worst < 0.1


def bf16_gradients_by_zero_stage(rank: int, world_size: int) -> float:
    """Largest difference of a zero 3 shard's gradient from zero 0's, relative to the gradient's norm."""
    model = parity.decoder(num_layers=2)
    batch = make_batch(model, ROWS, SEQ_LEN, padded=True)
    train = TrainSpec(seq_len=SEQ_LEN, global_batch_size=ROWS, precision="bf16")
    trainers = []
    for zero_stage in (0, 3):
        layout = parity.make_layout(model, 4, 1, 1, 1, precision="bf16", zero_stage=zero_stage)
        trainer, micro_batches = parity.new_trainer(model, layout, batch, None, train, seed=SEED)
        trainer.compute_gradients(micro_batches, step=0)
        trainers.append(trainer)
    whole, sharded = trainers
    worst = 0.0
    for name, master in sharded.states.masters.items():
        rows, _ = local_ranges(master, sharded.mesh)  # type: ignore[arg-type]
        expected_grad, grad = whole.states.masters[name].grad, master.grad
        assert expected_grad is not None
        assert grad is not None
        expected = local(expected_grad)
        difference = local(grad) - expected[rows.start : rows.stop]
        worst = max(worst, float(difference.norm() / expected.norm()))
    return worst


def test_bf16_gradients_are_summed_in_float32() -> None:
    # The same bf16 gradients of each micro-batch, so only the sum's dtype can differ; one bf16 rounding of a
    # sum is 4e-3, a float32 one 6e-8.
    assert max(run_ranks(4, bf16_gradients_by_zero_stage)) < 1e-5
