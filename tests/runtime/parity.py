"""Helpers of the parity tests: a rank's part of a batch, and its gradients against the reference."""

from __future__ import annotations

import math

import torch

from seqplan.planner.layout import Layout
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.train_spec import TrainSpec
from seqplan.runtime.data import BatchPart, MicroBatch
from seqplan.runtime.options import RunOptions
from seqplan.runtime.trainer import Trainer
from seqplan.runtime.weights import canonical_name, local_ranges
from tests.runtime.reference_model import Batch


def decoder(**changes: object) -> ModelSpec:
    """Llama-like and tied, with sizes that tell every axis apart; splits over 8 ranks of any axis."""
    fields: dict[str, object] = {
        "name": "parity-decoder",
        "family": "llama",
        "architecture": "decoder",
        "num_layers": 8,
        "hidden_size": 24,
        "ffn_hidden_size": 40,
        "num_attention_heads": 16,
        "num_kv_heads": 8,
        "head_dim": 4,
        "vocab_size": 70,
        "embedding_size": 24,
        "max_position_embeddings": None,
        "norm": "rmsnorm",
        "norm_bias": False,
        "norm_position": "pre",
        "norm_eps": 1e-5,
        "embedding_norm": False,
        "final_norm": True,
        "position": "rope",
        "activation": "swiglu",
        "qkv_bias": False,
        "attention_output_bias": False,
        "mlp_bias": False,
        "tied_embeddings": True,
        "head": "lm",
    }
    return ModelSpec(**{**fields, **changes})  # type: ignore[arg-type]


def encoder(**changes: object) -> ModelSpec:
    """BERT-like: norms after the sums, learned positions, token types, biases, MLM head."""
    fields: dict[str, object] = {
        "name": "parity-encoder",
        "family": "bert",
        "architecture": "encoder",
        "num_kv_heads": 16,
        "max_position_embeddings": 64,
        "position_rows": 64,
        "token_types": 2,
        "norm": "layernorm",
        "norm_bias": True,
        "norm_position": "post",
        "norm_eps": 1e-5,
        "embedding_norm": True,
        "final_norm": False,
        "position": "learned",
        "activation": "gelu",
        "qkv_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
        "head": "mlm",
        "head_bias": True,
    }
    return decoder(**{**fields, **changes})


def gpt2_like(**changes: object) -> ModelSpec:
    """GPT-2-like: LayerNorm, learned positions, tanh GELU, biases."""
    fields: dict[str, object] = {
        "name": "parity-gpt2",
        "family": "gpt2",
        "num_kv_heads": 16,
        "max_position_embeddings": 64,
        "position_rows": 64,
        "norm": "layernorm",
        "norm_bias": True,
        "position": "learned",
        "activation": "gelu_tanh",
        "qkv_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
    }
    return decoder(**{**fields, **changes})


def make_layout(model: ModelSpec, dp: int, pp: int, tp: int, sp: int, **changes: object) -> Layout:
    """A legal layout with defaults; stages as even as the layers allow, later ones first to get one more."""
    base, more = divmod(model.num_layers, pp)
    fields: dict[str, object] = {
        "micro_batch_size": max(1, 16 // (dp * max(2, pp))),  # of 16 rows: at least 2 micro-batches
        "attention": "ring" if sp > 1 else "none",
        "schedule": "1f1b" if pp > 1 else "none",
        "precision": "fp32",
        "stage_layers": tuple(base + (stage >= pp - more) for stage in range(pp)),
    }
    return Layout(dp=dp, pp=pp, tp=tp, sp=sp, **{**fields, **changes})  # type: ignore[arg-type]


def factorizations(world_size: int) -> list[tuple[int, int, int, int]]:
    """Every (dp, pp, tp, sp) whose product is world_size."""
    divisors = [d for d in range(1, world_size + 1) if world_size % d == 0]
    return [
        (dp, pp, tp, world_size // (dp * pp * tp))
        for dp in divisors
        for pp in divisors
        for tp in divisors
        if world_size % (dp * pp * tp) == 0
    ]


def rank_micro_batches(batch: Batch, trainer: Trainer, train: TrainSpec) -> list[MicroBatch]:
    """This rank's part of a whole batch."""
    mesh = trainer.mesh
    part = BatchPart.of(train, trainer.layout, trainer.model.causal, mesh.dp_rank, mesh.sp_rank)
    positions = torch.cat([torch.arange(start, stop) for start, stop in part.chunks])
    all_valid = bool(batch.valid.all())
    out = []
    for index in range(part.num_microbatches):
        rows = torch.tensor(part.rows(index))
        tokens, labels, valid = (x[rows][:, positions] for x in (batch.tokens, batch.labels, batch.valid))
        out.append(MicroBatch(tokens, labels, None if all_valid else valid, positions, rows))
    return out


def new_trainer(
    model: ModelSpec,
    layout: Layout,
    batch: Batch,
    dtype: torch.dtype | None,
    train: TrainSpec | None = None,
    **options: object,
) -> tuple[Trainer, list[MicroBatch]]:
    """A trainer on the CPU and this rank's micro-batches of `batch`."""
    rows, seq_len = batch.tokens.shape
    train = train or TrainSpec(seq_len=seq_len, global_batch_size=rows)
    run = RunOptions(**{"steps": 10, "seed": 3, **options})  # type: ignore[arg-type]
    trainer = Trainer(model, train, layout, run, torch.device("cpu"), verify_dtype=dtype)
    return trainer, rank_micro_batches(batch, trainer, train)


def worst_gradient_error(trainer: Trainer, reference: dict[str, torch.Tensor]) -> tuple[float, str]:
    """Largest over parameters of |g - g_ref| / max(|g_ref|, 1e-3 global norm), over this rank's shards.

    Some gradients are zero in exact arithmetic (a key bias), hence the floor. The difference is a shard's,
    the scale the whole parameter's: with up to 8 shards the whole difference is at most sqrt(8) larger.
    """
    total = math.sqrt(sum(float(g.double().pow(2).sum()) for g in reference.values()))
    worst = (0.0, "")
    for name, master in trainer.states.masters.items():
        expected = reference[canonical_name(name, trainer.model)]
        rows, columns = local_ranges(master, trainer.mesh)  # type: ignore[arg-type]
        grad = master.grad.to_local().double()  # type: ignore[union-attr]
        whole = torch.zeros(master.shape, dtype=torch.float64).view(*(*master.shape, 1)[:2])
        whole[: expected.shape[0]] = expected.double().view(expected.shape[0], -1)
        part = whole[rows.start : rows.stop, columns.start : columns.stop].reshape(grad.shape)
        scale = max(float(expected.double().norm()), 1e-3 * total)
        worst = max(worst, (float((grad - part).norm()) / scale, name))
    return worst
