"""Whole steps: the same training on every layout, tied copies, evaluation, dropout, clipping, weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.train_spec import TrainSpec
from seqplan.runtime.modules import local
from seqplan.runtime.optimizer import learning_rate_at
from seqplan.runtime.trainer import Trainer
from seqplan.runtime.weights import canonical_name, local_ranges
from tests.ranks import run_ranks
from tests.runtime import parity
from tests.runtime.reference_model import Batch, initial_weights, make_batch, mean_loss

pytestmark = pytest.mark.ranks

ROWS, SEQ_LEN, SEED = 16, 32, 3
STEPS = 3
RELATIVE = 1e-9

Degrees = tuple[int, int, int, int]
LAYOUTS: list[tuple[Degrees, dict[str, Any]]] = [
    ((4, 1, 1, 1), {}),
    ((1, 4, 1, 1), {}),
    ((1, 1, 4, 1), {}),
    ((1, 1, 1, 4), {}),
    ((2, 2, 1, 1), {"zero_stage": 3}),
    ((1, 2, 2, 1), {"tp_sequence_parallel": True, "recompute": "full"}),
    ((2, 1, 1, 2), {"zero_stage": 2}),
]


def small(kind: str) -> ModelSpec:
    return {"decoder": parity.decoder, "encoder": parity.encoder}[kind](num_layers=4)


def reference_training(model: ModelSpec, batch: Batch) -> tuple[list[float], list[float], dict[str, Tensor]]:
    """Losses, gradient norms and final weights of plain AdamW with clipping, one process, float64."""
    weights = initial_weights(model, SEED, torch.float64)
    decayed = [w for w in weights.values() if w.dim() > 1]
    others = [w for w in weights.values() if w.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        eps=1e-8,
    )
    losses, norms = [], []
    for step in range(STEPS):
        loss = mean_loss(model, weights, batch)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(weights.values(), 0.5)))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step, peak=1e-2, minimum=1e-3, warmup_steps=2, total_steps=10)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, norms, weights


def compare_training(rank: int, world_size: int, kind: str) -> list[list[int]]:
    """Train each layout and compare; the bits of the tied table's first and last copy, by layout."""
    model = small(kind)
    batch = make_batch(model, ROWS, SEQ_LEN, padded=True)
    losses, norms, weights = reference_training(model, batch)
    checksums = []
    for degrees, changes in LAYOUTS:
        layout = parity.make_layout(model, *degrees, **changes)
        trainer, micro_batches = parity.new_trainer(
            model, layout, batch, torch.float64, seed=SEED, clip_norm=0.5, learning_rate=1e-2,
            min_learning_rate=1e-3, warmup_steps=2,
        )  # fmt: skip
        for step in range(STEPS):
            result = trainer.train_step(micro_batches, step)
            assert abs(result.loss / losses[step] - 1) < RELATIVE, (degrees, step)
            assert abs(result.grad_norm / norms[step] - 1) < RELATIVE, (degrees, step, result, norms)
        for name, master in trainer.states.masters.items():
            rows, columns = local_ranges(master, trainer.mesh)  # type: ignore[arg-type]
            whole = weights[canonical_name(name, model)].detach()
            whole = whole.view(whole.shape[0], -1)[rows.start : rows.stop, columns.start : columns.stop]
            mine = local(master).detach().view(len(rows), len(columns))[: whole.shape[0]]
            # AdamW's first steps divide a gradient by its own size, so tiny gradients show their noise.
            assert (mine - whole).norm() <= 1e-6 * max(float(whole.norm()), 1e-3), (degrees, name)
        checksums.append(tied_bits(trainer))
    return checksums


def tied_bits(trainer: Trainer) -> list[int]:
    """The tied table as integers, where this rank holds a copy."""
    for name in ("embedding.tokens.weight", "head.weight"):
        if name in trainer.states.masters and trainer.layout.pp > 1:
            shard = local(trainer.states.masters[name]).detach()
            return [int(x) for x in shard.contiguous().view(torch.int64).flatten()[:200]]
    return []


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_three_steps_equal_one_process_and_tied_copies_stay_bit_equal(kind: str) -> None:
    results = run_ranks(4, compare_training, kind, timeout_s=150)
    # pp 4: ranks 0 and 3 are the ends. pp 2 x dp 2 and pp 2 x tp 2: rank r and rank r + 2.
    for case, pairs in ((1, [(0, 3)]), (4, [(0, 2), (1, 3)]), (5, [(0, 2), (1, 3)])):
        for first, last in pairs:
            assert results[first][case]
            assert results[first][case] == results[last][case], (kind, LAYOUTS[case])


def evaluation_losses(rank: int, world_size: int) -> list[float]:
    model = small("decoder")
    batch = make_batch(model, ROWS, SEQ_LEN, padded=True)
    train = TrainSpec(seq_len=SEQ_LEN, global_batch_size=ROWS, hidden_dropout=0.1)
    out = []
    for degrees, changes in LAYOUTS:
        layout = parity.make_layout(model, *degrees, **changes)
        trainer, micro_batches = parity.new_trainer(model, layout, batch, torch.float64, train, seed=SEED)
        out.append(trainer.evaluate(micro_batches)[0])
        assert all(master.grad is None for master in trainer.states.masters.values())
    return out


def test_evaluation_loss_is_the_same_for_every_layout() -> None:
    model = small("decoder")
    batch = make_batch(model, ROWS, SEQ_LEN, padded=True)
    expected = float(mean_loss(model, initial_weights(model, SEED, torch.float64), batch).detach())
    for losses in run_ranks(4, evaluation_losses, timeout_s=90):
        assert losses == pytest.approx([expected] * len(LAYOUTS), rel=RELATIVE)


def dropout_losses(
    rank: int, world_size: int, degrees: list[Degrees], attention: str
) -> list[tuple[float, float]]:
    """Loss and gradient norm with dropout, on each layout; two seeds must differ."""
    model = small("encoder")
    batch = make_batch(model, ROWS, SEQ_LEN, padded=True)
    p = 0.2 if attention == "rsa" else 0.0
    train = TrainSpec(seq_len=SEQ_LEN, global_batch_size=ROWS, hidden_dropout=0.3, attention_dropout=p)
    out = []
    for each in degrees:
        changes: list[dict[str, Any]] = [{}]
        if each[2] > 1:
            changes.append({"tp_sequence_parallel": True})
        for change in changes:
            used = "none" if attention == "ring" and each[3] == 1 else attention
            layout = parity.make_layout(model, *each, attention=used, **change)
            trainer, micro_batches = parity.new_trainer(model, layout, batch, torch.float64, train, seed=SEED)
            loss, _ = trainer.compute_gradients(micro_batches, step=0)
            norm = float(trainer.gradient_norm())
            trainer.optimizer.zero_grad()
            other, _ = trainer.compute_gradients(micro_batches, step=1)
            assert abs(other / loss - 1) > 1e-6, "two steps drew the same masks"
            out.append((loss, norm))
    return out


@pytest.mark.parametrize("attention", ["ring", "rsa"])
def test_dropout_is_the_same_for_every_layout(attention: str) -> None:
    # Equal losses need equal masks on replicas and the right ones on shards: section G of the faults.
    ((truth,),) = run_ranks(1, dropout_losses, [(1, 1, 1, 1)], attention)
    four: list[Degrees] = [(1, 1, 1, 4), (1, 1, 4, 1), (2, 2, 1, 1), (1, 1, 2, 2), (1, 2, 2, 1)]
    for losses in run_ranks(4, dropout_losses, four, attention, timeout_s=120):
        assert len(losses) == len(four) + 3
        for loss, norm in losses:
            assert loss == pytest.approx(truth[0], rel=RELATIVE)
            assert norm == pytest.approx(truth[1], rel=RELATIVE)


def initial_shards_equal(rank: int, world_size: int) -> bool:
    model = small("decoder")
    batch = make_batch(model, ROWS, SEQ_LEN, padded=False)
    whole = initial_weights(model, SEED, torch.float32)
    for degrees, changes in LAYOUTS:
        layout = parity.make_layout(model, *degrees, **changes)
        trainer, _ = parity.new_trainer(model, layout, batch, None, seed=SEED)
        for name, master in trainer.states.masters.items():
            rows, columns = local_ranges(master, trainer.mesh)  # type: ignore[arg-type]
            expected = whole[canonical_name(name, model)].detach()
            expected = expected.view(expected.shape[0], -1)[
                rows.start : rows.stop, columns.start : columns.stop
            ]
            mine = local(master).detach().view(len(rows), len(columns))
            assert torch.equal(mine[: expected.shape[0]], expected), (degrees, name)
            assert not mine[expected.shape[0] :].any(), "rows that pad the vocabulary start at zero"
    return True


def test_initial_weights_are_bit_equal_on_every_layout() -> None:
    assert all(run_ranks(4, initial_shards_equal, timeout_s=90))


def forwards_of_layers(rank: int, world_size: int) -> dict[str, int]:
    """How often each layer's forward runs in one micro-batch with two of four layers recomputed."""
    model = small("decoder")
    batch = make_batch(model, ROWS, SEQ_LEN, padded=False)
    layout = parity.make_layout(
        model, 1, 1, 1, 1, recompute="full", recompute_layers=2, micro_batch_size=ROWS
    )
    trainer, micro_batches = parity.new_trainer(model, layout, batch, None)
    calls = dict.fromkeys(trainer.stage.layers, 0)

    def count(name: str) -> None:
        calls[name] += 1

    for name, layer in trainer.stage.layers.items():
        layer.register_forward_pre_hook(lambda module, inputs, name=name: count(name))
    trainer.compute_gradients(micro_batches, step=0)
    return calls


def test_recompute_layers_recomputes_that_many() -> None:
    assert run_ranks(1, forwards_of_layers) == [{"0": 2, "1": 2, "2": 1, "3": 1}]
