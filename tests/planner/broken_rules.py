"""Layouts that break a rule: the rule, and what its text must hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seqplan.planner.question import Question
from tests.planner.samples import decoder, encoder, gpt2, old_cluster, question, trainer

FREE_TRAINER = trainer(
    schedules=("none", "1f1b", "interleaved"),
    recompute=("none", "selective", "full"),
    zero_stages=(0, 1, 2, 3),
    hybrid_sharding=True,
    min_microbatches_per_stage=0,
)


@dataclass(frozen=True)
class Broken:
    """One broken rule."""

    what: str
    question: Question
    layout: dict[str, Any]
    rule: str
    says: list[str]
    """Fragments of the rule's text."""


BROKEN: list[Broken] = [
    Broken(
        "too many ranks",
        question(gpus=8),
        {"dp": 8, "sp": 8},
        "world_size",
        ["dp=8 x pp=1 x tp=1 x sp=8 needs 64 GPUs, not 8", "dp=1 or sp=1", "use 64 GPUs"],
    ),
    Broken(
        "too few ranks, one degree that cannot be",
        question(gpus=8),
        {"pp": 3},
        "world_size",
        ["needs 3 GPUs, not 8", "a divisor of 8 (1, 2, 4 or 8)"],
    ),
    Broken(
        "heads",
        question(decoder(num_attention_heads=40, num_kv_heads=40, hidden_size=5120)),
        {"tp": 16},
        "tp_heads",
        [
            "tp=16 does not divide num_attention_heads=40; use 1, 2, 4, 5, 8, 10, 20 or 40",
            "nearest that works is 8",
        ],
    ),
    Broken(
        "kv heads",
        question(decoder(num_kv_heads=8), gpus=16),
        {"tp": 16},
        "tp_kv_heads",
        ["tp=16 is more than num_kv_heads=8", "does not copy kv heads", "use 1, 2, 4 or 8"],
    ),
    Broken(
        "mlp",
        question(gpt2(ffn_hidden_size=2050), gpus=4, seq_len=512),
        {"tp": 4},
        "tp_ffn",
        ["tp=4 does not divide ffn_hidden_size=2050", "of which 1 and 2 also divide ffn_hidden_size=2050"],
    ),
    Broken(
        "vocabulary that is never padded",
        question(gpt2(), gpus=2, seq_len=512, implementation=trainer(vocab_multiple=0)),
        {"tp": 2},
        "tp_vocab",
        ["tp=2 does not divide vocab_size=50257", "50258, 50304 or 50432"],
    ),
    Broken(
        "zigzag",
        question(seq_len=1000, gpus=16),
        {"sp": 16},
        "sequence",
        ["seq_len=1000 is not a multiple of 32", "992 and 1024", "sp 1, 2 or 4"],
    ),
    Broken(
        "contiguous",
        question(encoder(max_position_embeddings=2048, position_rows=2048), seq_len=1000, gpus=16),
        {"sp": 16},
        "sequence",
        ["seq_len=1000 is not a multiple of 16", "992 and 1008"],
    ),
    Broken(
        "shorter than one part each",
        question(seq_len=3, gpus=4),
        {"sp": 4},
        "sequence",
        ["the nearest legal lengths are 8"],
    ),
    Broken(
        "tokens over tp too",
        question(seq_len=32, gpus=12),
        {"sp": 3, "tp": 4, "tp_sequence_parallel": True},
        "sequence",
        ["not a multiple of 12 (lcm of 2 x sp and sp x tp", "24 and 36"],
    ),
    Broken(
        "stages",
        question(decoder(num_layers=12), gpus=16),
        {"pp": 16},
        "pp_layers",
        ["pp=16 makes 16 stages for 12 layers", "pp 1, 2, 4 or 8"],
    ),
    Broken(
        "lost layers",
        question(decoder(num_layers=30), gpus=4),
        {"pp": 4, "stage_layers": [7, 7, 7, 7]},
        "stage_layers",
        ["7+7+7+7 (4 stages, 28 layers)", "each of the 30 layers once", "7+8+8+7"],
    ),
    Broken(
        "empty stage",
        question(decoder(num_layers=4), gpus=4),
        {"pp": 4, "stage_layers": [0, 2, 1, 1]},
        "stage_layers",
        ["at least one layer"],
    ),
    Broken("schedule without stages", question(), {"dp": 8, "schedule": "1f1b"}, "schedule", ["not pp=1"]),
    Broken(
        "stages without schedule",
        question(),
        {"pp": 8, "schedule": "none"},
        "schedule",
        ["set schedule 1f1b"],
    ),
    Broken(
        "chunks",
        question(implementation=FREE_TRAINER),
        {"pp": 8, "schedule": "interleaved", "num_virtual_stages": 5},
        "schedule",
        ["num_virtual_stages=5", "every stage (4)", "use 2 or 4"],
    ),
    Broken(
        "chunks of 1f1b",
        question(),
        {"pp": 8, "num_virtual_stages": 2},
        "schedule",
        ["set num_virtual_stages=1"],
    ),
    Broken(
        "batch over dp",
        question(gpus=8, global_batch_size=30),
        {"dp": 8},
        "batch",
        [
            "global_batch_size=30",
            "dp=8",
            "1, 2, 3, 5, 6, 10, 15 and 30",
            "on 8 GPUs use dp 1 or 2",
            "24 or 32",
        ],
    ),
    Broken(
        "micro-batch",
        question(gpus=8, global_batch_size=48),
        {"dp": 8, "micro_batch_size": 4},
        "batch",
        ["over dp=8 is 6 sequences, not a multiple of micro_batch_size=4", "1, 2, 3 or 6"],
    ),
    Broken(
        "micro-batches",
        question(gpus=8, global_batch_size=8),
        {"dp": 2, "pp": 4, "micro_batch_size": 4},
        "microbatches",
        [
            "num_microbatches=1",
            "less than pp=4",
            "micro_batch_size=1 (gives 4)",
            "global_batch_size=32",
            "pp=1",
        ],
    ),
    Broken(
        "recompute_layers",
        question(),
        {"dp": 8, "recompute": "full", "recompute_layers": 33},
        "recompute_layers",
        ["recompute_layers=33", "32 layers"],
    ),
    Broken(
        "mesh order",
        question(),
        {"dp": 8, "mesh_order": ["pp", "dp", "sp"]},
        "mesh_order",
        ["dp, pp, tp and sp"],
    ),
    Broken(
        "plain attention over sp",
        question(),
        {"sp": 8, "attention": "none"},
        "attention",
        ["ring or rsa, or sp=1"],
    ),
    Broken(
        "dropout in a ring",
        question(attention_dropout=0.1),
        {"sp": 8, "attention": "ring"},
        "attention",
        ["attention_dropout=0.1", "set attention=rsa"],
    ),
    Broken(
        "a ring of one rank",
        question(),
        {"sp": 8, "attention": "ring", "ulysses_degree": 8},
        "ulysses_degree",
        ["ulysses_degree=8 with attention=ring and sp=8", "set attention=ulysses"],
    ),
    Broken(
        "heads split by no divisor of sp",
        question(),
        {"sp": 8, "attention": "ring", "ulysses_degree": 3},
        "ulysses_degree",
        ["it must divide sp; use 1, 2 or 4"],
    ),
    Broken(
        "heads split over a part of sp without a ring",
        question(),
        {"sp": 8, "attention": "ulysses", "ulysses_degree": 4},
        "ulysses_degree",
        ["set ulysses_degree=8, or attention=ring"],
    ),
    Broken(
        "heads split beside rsa",
        question(),
        {"sp": 8, "attention": "rsa", "ulysses_degree": 2},
        "ulysses_degree",
        ["with attention=rsa", "set attention=ring, or ulysses_degree=1"],
    ),
    Broken(
        "more ranks than heads",
        question(gpus=64),
        {"sp": 64, "attention": "ulysses"},
        "ulysses_heads",
        ["ulysses_degree=64 does not divide the 32 heads", "use 1, 2, 4, 8, 16 or 32"],
    ),
    Broken(
        "kv heads that can be neither split nor copied evenly",
        question(decoder(num_attention_heads=24, num_kv_heads=8, hidden_size=3072), gpus=12),
        {"sp": 12, "attention": "ulysses"},
        "ulysses_heads",
        ["multiple of its kv heads (num_kv_heads=8)", "use 1, 2 or 4"],
    ),
    Broken(
        "tokens over one tp rank",
        question(),
        {"dp": 8, "tp_sequence_parallel": True},
        "tp_sequence_parallel",
        ["tp=1"],
    ),
    Broken(
        "shards",
        question(implementation=FREE_TRAINER),
        {"dp": 8, "zero_stage": 3, "zero_shard_size": 3},
        "zero_shard_size",
        ["dp x sp=8", "1, 2, 4 or 8"],
    ),
    Broken(
        "bf16 before it existed",
        question(where=old_cluster(), precision="bf16"),
        {"dp": 8},
        "precision",
        ["has no precision=bf16", "fp32 or fp16"],
    ),
    Broken(
        "two precisions",
        question(precision="fp32"),
        {"dp": 8, "precision": "bf16"},
        "precision",
        ["bf16 in the layout, fp32 in the training"],
    ),
    Broken(
        "flash before it existed",
        question(where=old_cluster()),
        {"dp": 8, "kernel": "flash"},
        "kernel",
        ["no kernel=flash for fp32", "efficient or math"],
    ),
]
