"""Models of the public reports that the tests ask about, and how they ask."""

from __future__ import annotations

from typing import Any

from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.question import Question
from seqplan.planner.rules.legality import reasons
from tests.planner.formula_cases import our_trainer
from tests.planner.samples import decoder, layout, question

LLAMA_30B = decoder(  # arXiv 2302.13971, table 2: 52 heads, 6656, 60 layers
    name="llama-30b",
    num_layers=60,
    hidden_size=6656,
    ffn_hidden_size=17920,
    num_attention_heads=52,
    num_kv_heads=52,
    vocab_size=32000,
)
QWEN_7B = decoder(  # arXiv 2412.15115: Qwen2.5-7B, 28 heads and 4 kv heads
    name="qwen2.5-7b",
    num_layers=28,
    hidden_size=3584,
    ffn_hidden_size=18944,
    num_attention_heads=28,
    num_kv_heads=4,
    vocab_size=152064,
)
QWEN_14B = decoder(  # the same report: 40 heads and 8 kv heads
    name="qwen2.5-14b",
    num_layers=48,
    hidden_size=5120,
    ffn_hidden_size=13824,
    num_attention_heads=40,
    num_kv_heads=8,
    vocab_size=152064,
)
DENSE_61 = decoder(  # a dense model of DeepSeek-V3's outer sizes (arXiv 2412.19437)
    name="dense-61",
    num_layers=61,
    hidden_size=7168,
    ffn_hidden_size=18432,
    num_attention_heads=128,
    num_kv_heads=128,
    head_dim=56,
    vocab_size=129280,
)
LLAMA3_70B = decoder(  # arXiv 2407.21783, table 3
    name="llama-3-70b",
    num_layers=80,
    hidden_size=8192,
    ffn_hidden_size=28672,
    num_attention_heads=64,
)


def ours(model: ModelSpec, gpus: int, **changes: Any) -> Question:
    return question(model, gpus, implementation=our_trainer(), **changes)


def texts(asked: Question, **fields: Any) -> dict[str, str]:
    return {reason.rule: reason.message for reason in reasons(asked, layout(asked, **fields))}
