"""What attention keeps in Megatron-LM of 2021, a score at a time: fused softmax, unfused softmax, ring.

The truth is the code of that year: model/fused_softmax.py (16 bits, up to 2048 keys, queries and sequences x
heads in fours), query-key layer scaling (softmax in fp32), torch before pull request 66018 (softmax keeps its
input too, issues 49600 and 64000), dropout that keeps a mask of a byte and its result, which the next matmul
needs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from seqplan import profiles
from seqplan.planner.activations import LayerRow, TensorRow
from seqplan.planner.choosing.layout_table import from_layout
from seqplan.planner.memory.symbols import layout_values
from seqplan.planner.question import Question
from seqplan.planner.train_spec import TrainSpec
from tests.planner.samples import encoder, gpt2, layout, old_cluster

TRAINER = profiles.load_implementation("megatron-2021")

FUSED, UNFUSED, FP32 = 2 + 1 + 2, 4 + 4 + 1 + 2, 4 + 4 + 1 + 4
"""Bytes a score with dropout: [input,] probabilities, mask, dropped probabilities."""


def ask(seq_len: int, *, precision: str = "fp16", dropout: float = 0.1, causal: bool = False) -> Question:
    given: dict[str, Any] = {"precision": precision, "attention_dropout": dropout, "hidden_dropout": dropout}
    return Question(
        model=gpt2() if causal else encoder(),  # 12 heads; 16 heads
        cluster=old_cluster(),
        gpus=16,
        train=TrainSpec(seq_len=seq_len, global_batch_size=4, **given),
        implementation=TRAINER,
    )


def size(row: TensorRow, asked: Question, **fields: Any) -> float:
    table = from_layout(layout(asked, **fields), asked.train)
    stage = {
        "layers": 1,
        "first": True,
        "last": True,
        **dict.fromkeys(("P", "Pn", "Pl", "Pe", "Ph", "Pw"), 0.0),
    }
    return float(np.max(row.size_bytes({**layout_values(asked, table), **stage})))


def attention_bytes(
    rows: tuple[TensorRow, ...] | tuple[LayerRow, ...], asked: Question, **fields: Any
) -> float:
    return sum(size(row, asked, **fields) for row in rows if row.kind == "attention")


@pytest.mark.parametrize(
    ("seq_len", "micro_batch", "tp", "sp", "bytes_a_score"),
    [
        (2048, 4, 1, 1, FUSED),
        (2064, 4, 1, 1, UNFUSED),  # longer than the kernel goes
        (2048, 1, 16, 1, UNFUSED),  # 1 sequence x 1 head
        (2048, 4, 16, 1, FUSED),
        (2048, 1, 4, 1, FUSED),
        (1032, 4, 1, 4, UNFUSED),  # 258 queries
        (1040, 4, 1, 4, FUSED),
        (4096, 4, 1, 16, UNFUSED),
    ],
)
def test_what_a_layer_keeps(seq_len: int, micro_batch: int, tp: int, sp: int, bytes_a_score: int) -> None:
    asked = ask(seq_len)
    found = attention_bytes(TRAINER.layer, asked, tp=tp, sp=sp, micro_batch_size=micro_batch)
    assert found == micro_batch * 16 / tp * seq_len / sp * seq_len * bytes_a_score


@pytest.mark.parametrize(
    ("seq_len", "precision", "dropout", "bytes_a_score"),
    [
        (512, "fp16", 0.0, 2),
        (4096, "fp16", 0.0, 4 + 4 + 2),  # and a copy in 16 bits for the matmul
        (512, "fp32", 0.1, FP32),
        (512, "fp32", 0.0, 4 + 4),
        (4096, "fp32", 0.1, FP32),
    ],
)
def test_without_dropout_and_in_fp32(
    seq_len: int, precision: str, dropout: float, bytes_a_score: int
) -> None:
    asked = ask(seq_len, precision=precision, dropout=dropout)
    found = attention_bytes(TRAINER.layer, asked, micro_batch_size=4)
    assert found == 4 * 16 * seq_len**2 * bytes_a_score


@pytest.mark.parametrize(
    ("seq_len", "causal", "bytes_a_pair"), [(512, False, 0), (4096, False, 1), (4096, True, 0)]
)
def test_the_mask_of_padded_tokens(seq_len: int, causal: bool, bytes_a_pair: int) -> None:
    """One bool for every query and key, kept by masked_fill_ alone; the fused kernels do not keep it."""
    asked = ask(seq_len, causal=causal)
    assert (
        attention_bytes(TRAINER.micro_batch, asked, sp=4, micro_batch_size=4)
        == 4 * seq_len**2 / 4 * bytes_a_pair
    )


@pytest.mark.parametrize(
    ("moment", "seq_len", "bytes_at_the_peak"),
    [
        # fused, forward: raw scores, probabilities, mask and result of the dropout; the mask of the padding
        ("attention_forward", 2048, 2 + 2 + 1 + 2 + 1 / 16),
        # fused, backward: what is kept and the gradient of the dropped probabilities
        ("attention_backward", 2048, 2 + 1 + 2 + 2),
        # unfused, forward: raw scores, input, probabilities in fp32 and 16 bits, mask, result
        ("attention_forward", 4096, 2 + 4 + 4 + 2 + 1 + 2),
        # unfused, backward of the softmax: input, probabilities, their gradient and the scores'
        ("attention_backward", 4096, 4 + 4 + 4 + 4),
    ],
)
def test_the_fullest_moment_of_a_layer(moment: str, seq_len: int, bytes_at_the_peak: float) -> None:
    asked = ask(seq_len)
    scores = 4 * 16 * seq_len**2
    working = tuple(row for row in TRAINER.working if moment in row.at)
    kept = attention_bytes(TRAINER.layer, asked, micro_batch_size=4)
    found = kept + attention_bytes(working, asked, micro_batch_size=4)
    assert found == pytest.approx(bytes_at_the_peak * scores, rel=1e-12)


def test_a_gradient_of_the_whole_sequence() -> None:
    """mpu/layers.py of the authors: dV is all-reduced over the ring at full length, then sliced."""
    asked = ask(4096)
    (row,) = [row for row in TRAINER.working if row.kind == "comm_buffers"]
    assert row.at == ("attention_backward",)
    assert size(row, asked, sp=16, micro_batch_size=4) == 4 * 4096 * 1024 * 2
    assert size(row, asked, tp=16, micro_batch_size=4) == 0
