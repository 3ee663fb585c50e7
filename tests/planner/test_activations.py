"""What a layer keeps for backward: published formulas and measured counts against the inventories."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from seqplan.planner.activations import LayerRow, RecomputeMode, TensorRow, layer_bytes, total_bytes
from seqplan.planner.choosing.layout_table import from_layout
from seqplan.planner.memory.symbols import layout_values
from seqplan.planner.question import Question
from tests.planner.formula_cases import cluster, decoder, encoder, gpt, layout, our_trainer, question, trainer

EXACT = 1e-12
"""Relative: the two sides are the same sums in another order."""

# Korthikanti et al. 2205.05198, section 4.1: bytes of each tensor in units of s b h, or of a s s b.
KORTHIKANTI: list[dict[str, Any]] = [
    {"name": "layer norm 1", "elements": "Tr * h", "bytes": 2, "kept_with": ["none", "selective", "full"]},
    {"name": "input of QKV", "elements": "Tr * h", "bytes": 2},
    {"name": "Q and K", "elements": "2 * T * a * d", "bytes": 2},
    {"name": "V", "elements": "T * a * d", "bytes": 2},
    {"name": "softmax", "elements": "a * L * L * B", "bytes": 2, "kept_with": ["none"]},
    {"name": "softmax dropout mask", "elements": "a * L * L * B", "bytes": 1, "kept_with": ["none"]},
    {"name": "softmax dropout", "elements": "a * L * L * B", "bytes": 2, "kept_with": ["none"]},
    {"name": "input of the projection", "elements": "T * a * d", "bytes": 2},
    {"name": "dropout mask", "elements": "Tr * h", "bytes": 1},
    {"name": "layer norm 2", "elements": "Tr * h", "bytes": 2},
    {"name": "input of the MLP", "elements": "Tr * h", "bytes": 2, "part": "mlp"},
    {"name": "input of GeLU", "elements": "T * f", "bytes": 2, "part": "mlp"},
    {"name": "input of the second linear", "elements": "T * f", "bytes": 2, "part": "mlp"},
    {"name": "second dropout mask", "elements": "Tr * h", "bytes": 1, "part": "mlp"},
]


def korthikanti() -> list[dict[str, Any]]:
    """The same as inventory rows."""
    return [{"kind": "activations", **row} for row in KORTHIKANTI]


def kept_bytes(asked: Question, mode: RecomputeMode = "none", **fields: Any) -> float:
    """Bytes that one layer keeps of one micro-batch."""
    table = from_layout(layout(asked, **fields), asked.train)
    by_kind = layer_bytes(asked.implementation.layer, layout_values(asked, table), mode)
    return float(total_bytes(by_kind)[0])


# GPT-3 175B: s 2048, h 12288, a 96, for which the paper gives 5as/h = 80.
S, H, A = 2048, 12288, 96


@pytest.mark.parametrize(
    ("mode", "tp", "split", "factor"),
    [
        # Table 2 of the paper; t = tp.
        ("none", 1, False, 34 + 80),
        ("none", 8, False, 10 + 24 / 8 + 80 / 8),
        ("none", 8, True, (34 + 80) / 8),
        ("selective", 8, False, 10 + 24 / 8),
        ("selective", 8, True, 34 / 8),
        ("full", 1, False, 2),
        ("full", 8, True, 2 / 8),
    ],
)
def test_korthikanti_family(mode: RecomputeMode, tp: int, split: bool, factor: float) -> None:
    asked = question(gpt(96, H, A, 51200, S), seq_len=S, gpus=tp, implementation=trainer(layer=korthikanti()))
    for batch in (1, 4):
        kept = kept_bytes(asked, mode, tp=tp, tp_sequence_parallel=split, micro_batch_size=batch)
        assert kept == pytest.approx(S * batch * H * factor, rel=EXACT)


# Saved-tensor hooks on a pre-norm RMSNorm, GQA, RoPE, SwiGLU layer with fused attention and norm in bf16, h
# = 1024,
# 8 heads, f = 3.5 h: bytes per token in units of h, the norms' own statistics (4 bytes each) apart.
@pytest.mark.parametrize(("kv_heads", "per_token"), [(8, 44.03125), (1, 40.53125)])
@pytest.mark.parametrize(("tokens", "batch"), [(512, 1), (4096, 2)])
def test_our_decoder_layer_against_measured(kv_heads: int, per_token: float, tokens: int, batch: int) -> None:
    model = decoder(
        hidden_size=1024, num_kv_heads=kv_heads, num_attention_heads=8, head_dim=128, ffn_hidden_size=3584
    )
    asked = question(model, seq_len=tokens, gpus=1)
    kept = kept_bytes(asked, micro_batch_size=batch)
    assert kept == pytest.approx(tokens * batch * (per_token * 1024 + 2 * 4), rel=EXACT)


def test_our_encoder_layer() -> None:
    # 2205.05198's 34 without its two dropout masks of one byte is 32 per element of h; fused attention
    # keeps 4 bytes a head for the log-sum-exp; two LayerNorms a mean and a deviation of 4 bytes each.
    asked = question(encoder(), seq_len=512, gpus=1)
    assert kept_bytes(asked) == pytest.approx(512 * (32 * 512 + 4 * 8 + 16), rel=EXACT)


@pytest.mark.parametrize("model", [decoder(), encoder(), gpt(4, 512, 8, 1000, 2048)])
def test_everything_is_divided_by_sp(model: Any) -> None:
    asked = question(model, seq_len=2048, gpus=8)
    whole, part = kept_bytes(asked), kept_bytes(asked, sp=8)
    assert part == pytest.approx(whole / 8, rel=EXACT)


def test_rsa_keeps_score_rows_of_full_length() -> None:
    asked = question(seq_len=2048, gpus=4)
    ring, rsa = kept_bytes(asked, sp=4, attention="ring"), kept_bytes(asked, sp=4, attention="rsa")
    probabilities = 2 * 8 * 512 * 2048  # bf16, 8 heads, L/4 rows of L
    log_sum_exp = 4 * 8 * 512
    assert rsa - ring == probabilities - log_sum_exp


def test_full_recompute_keeps_the_layer_input_only() -> None:
    asked = question(seq_len=2048, gpus=2)
    assert kept_bytes(asked, "full", tp=2) == 2048 * 512 * 2
    assert kept_bytes(asked, "full", tp=2, tp_sequence_parallel=True) == 2048 * 512 * 2 / 2


def test_rope_or_learned_positions_change_no_layer() -> None:
    asked = question(decoder(), gpus=1)
    learned = question(decoder(position="learned", position_rows=2048), gpus=1)
    assert kept_bytes(asked) == kept_bytes(learned)


def test_every_row_of_our_inventory_is_used_somewhere() -> None:
    """A `when` that never holds is a row that nobody checks."""
    trained = our_trainer()
    # What depends on the stage is held to simulation (tests/grid.py).
    kept = [row for row in trained.micro_batch if row.name != "input of the stage"]
    rows = [*trained.layer, *trained.embedding, *trained.head, *kept]
    seen: set[str] = set()
    variants = [decoder(qk_norm="per_head"), encoder(), gpt(4, 512, 8, 1000, 2048, activation="relu")]
    for model in variants:
        for fields in ({"tp": 2, "sp": 2}, {"sp": 4, "attention": "rsa"}):
            for kind in ("cuda", "cpu"):
                asked = question(model, gpus=4, on=cluster(kind=kind), implementation=trained)
                values = layout_values(asked, from_layout(layout(asked, **fields), asked.train))
                seen.update(row.name for row in rows if np.any(row.size_bytes(values)))
    assert {row.name for row in rows} == seen


def test_a_wrong_formula_is_refused_when_the_file_is_read() -> None:
    with pytest.raises(Exception, match="unknown symbol 'tokens'"):
        TensorRow(name="x", elements="tokens * h", bytes=2, kind="activations")
    with pytest.raises(Exception, match="Attribute is not allowed"):
        LayerRow(name="x", elements="T.real", bytes=2, kind="activations")
    with pytest.raises(Exception, match="kind"):
        TensorRow(name="x", elements="T", bytes=2, kind="stuff")  # type: ignore[arg-type]
