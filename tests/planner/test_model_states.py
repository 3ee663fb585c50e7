"""Parameters and states of a rank: published totals, and shards counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from seqplan.planner.choosing.layout_table import from_layout
from seqplan.planner.memory.model_states import rank_parameters
from seqplan.planner.memory_model import memory_estimate
from seqplan.planner.question import Question
from tests.planner.formula_cases import decoder, encoder, gpt, layout, question, trainer

EXACT = 1e-12
"""Relative: the two sides are the same sums in another order."""
ROUNDED = 5e-3
"""Relative: the published number has three digits."""

MEGATRON_STATES: list[dict[str, Any]] = [
    {"name": "bf16 weights", "elements": "P", "bytes": 2, "kind": "weights"},
    {"name": "fp32 gradients", "elements": "P", "bytes": 4, "kind": "gradients"},
    {"name": "master and Adam", "elements": "P / (N if zero > 0 else 1)", "bytes": 12, "kind": "optimizer"},
]
"""18 bytes a parameter; with the distributed optimizer 6 + 12 / N (Megatron-LM's documentation)."""


def states_bytes(asked: Question, **fields: Any) -> float:
    """Weights, gradients and optimizer of the fullest stage at the optimizer's moment."""
    kinds = memory_estimate(asked, layout(asked, **fields)).stages[0].by_kind
    return kinds["weights"] + kinds["gradients"] + kinds["optimizer"]


def test_states_of_gpt3_without_and_with_the_distributed_optimizer() -> None:
    # GPT-3 175B: 96 layers of 12288, vocabulary 51200, 2048 positions; 174.6 billion parameters.
    model = gpt(96, 12288, 96, 51200, 2048)
    assert model.parameters() == pytest.approx(174.6e9, rel=ROUNDED)
    asked = question(model, implementation=trainer(states=MEGATRON_STATES), gpus=64)
    assert states_bytes(asked, dp=64) == 18 * model.parameters()
    sharded = states_bytes(asked, dp=64, zero_stage=1)
    assert sharded == pytest.approx((6 + 12 / 64) * model.parameters(), rel=EXACT)


@pytest.mark.parametrize(
    ("fields", "bytes_a_parameter"),
    [
        ({"precision": "fp32"}, 16),  # weight, gradient, two moments
        ({"precision": "bf16"}, 18),  # and the copy that computes
    ],
)
def test_our_replicated_states(fields: dict[str, Any], bytes_a_parameter: int) -> None:
    # Vocabulary a multiple of 64, so that nothing is padded. The optimizer's moment holds all states.
    asked = question(decoder(vocab_size=1024), gpus=1, seq_len=64, global_batch_size=1, **fields)
    assert states_bytes(asked, **fields) == bytes_a_parameter * asked.model.parameters()


def test_our_sharded_states_of_llama_70b_on_80_gpus() -> None:
    # LlamaFactory#406: ZeRO-3 over 80 GPUs is 13.8 GB a GPU (16 bytes of 68.98e9 parameters / 80),
    # besides the
    # gathered units. Norms of 8192 over 80 ranks round up.
    model = decoder(
        num_layers=80,
        hidden_size=8192,
        ffn_hidden_size=28672,
        num_attention_heads=64,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=32000,
    )
    asked = question(model, gpus=80, global_batch_size=80)
    table = from_layout(layout(asked, dp=80, zero_stage=3), asked.train)
    shard = rank_parameters(asked, table).stage(table, 0)["Pn"]
    assert 16 * shard[0] == pytest.approx(13.8e9, rel=ROUNDED)
    assert shard[0] >= model.parameters() / 80


def test_shards_round_up_and_norms_are_not_divided_by_tp() -> None:
    model = decoder(num_layers=1, vocab_size=1024)
    asked = question(model, gpus=6, implementation=trainer(), global_batch_size=6)
    table = from_layout(layout(asked, dp=3, tp=2, zero_stage=3), asked.train)
    held = rank_parameters(asked, table)
    # q, o: 512 x 512; k, v: 256 x 512; gate, up, down: 1024 x 512; two norms of 512.
    assert held.layer.whole[0] == (2 * 512 + 2 * 256 + 3 * 1024) * 512 / 2 + 2 * 512
    # Rows of the tp shard over 3 ranks, rounded up: q 256 -> 86, k and v 128 -> 43, gate and up 512 -> 171;
    # o [512, 256] and down [512, 512] are cut by rows too: 512 -> 171; norms 512 -> 171.
    expected = (86 + 2 * 43 + 2 * 171) * 512 + 171 * 256 + 171 * 512 + 2 * 171
    assert held.layer.shard[0] == expected


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_parameters_of_the_paper(tp: int) -> None:
    # arXiv 2105.13120, table 4, BERT Large over 8 stages, N = tp: P = 3 ((12 H^2 + 7 H)/N + 6 H) + Vpad
    # H / N + (L + 2) H
    hidden, length, stage_layers = 1024, 512, 3
    model = encoder(
        num_layers=24,
        hidden_size=hidden,
        ffn_hidden_size=4 * hidden,
        num_attention_heads=16,
        num_kv_heads=16,
        vocab_size=30522,
        max_position_embeddings=length,
        position_rows=length,
        embedding_norm=False,
        head_dim=64,
    )
    made = trainer()
    padded = made.model_copy(
        update={"capabilities": made.capabilities.model_copy(update={"vocab_multiple": 128})}
    )
    asked = question(model, seq_len=length, gpus=8 * tp, implementation=padded)
    table = from_layout(layout(asked, pp=8, tp=tp), asked.train)
    vocab = -(-30522 // (128 * tp)) * 128 * tp
    expected = (
        stage_layers * ((12 * hidden**2 + 7 * hidden) / tp + 6 * hidden)
        + vocab * hidden / tp
        + (length + 2) * hidden
    )
    assert rank_parameters(asked, table).stage(table, 0)["P"][0] == pytest.approx(expected, rel=EXACT)


def test_a_tied_table_stands_on_both_ends_of_a_pipeline() -> None:
    asked = question(decoder(tied_embeddings=True, vocab_size=6400), gpus=2, implementation=trainer())
    one = from_layout(layout(asked), asked.train)
    two = from_layout(layout(asked, pp=2), asked.train)
    table_parameters = 6400 * 512
    alone = rank_parameters(asked, one).stage(one, 0)["P"][0]
    assert alone == asked.model.parameters()
    both = sum(rank_parameters(asked, two).stage(two, stage)["P"][0] for stage in (0, 1))
    assert both == alone + table_parameters


def test_copied_kv_heads_are_counted() -> None:
    asked = question(decoder(num_kv_heads=2), gpus=8, implementation=trainer())
    table = from_layout(layout(asked, tp=8), asked.train)
    layer = rank_parameters(asked, table).layer.whole[0]
    # q and output 2 x 512 x 64, k and v one head each 2 x 512 x 64, MLP 3 x 512 x 128, norms.
    assert layer == 4 * 512 * 64 + 3 * 512 * 128 + 2 * 512
