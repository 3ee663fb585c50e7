"""Memory of every stage: published totals, the paper's formulas, and sums made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from seqplan.planner.choosing.layout_table import LayoutTable, concatenate, from_layout, from_layouts
from seqplan.planner.memory.symbols import layout_values
from seqplan.planner.memory_model import (
    communicators,
    memory_estimate,
    memory_table,
    micro_batches_in_flight,
)
from seqplan.planner.question import Question
from seqplan.planner.results import MEMORY_KINDS
from tests.planner.formula_cases import cluster, decoder, encoder, gpt, layout, our_trainer, question, trainer
from tests.planner.test_activations import korthikanti

EXACT = 1e-12
"""Relative: the two sides are the same sums in another order."""
ROUNDED = 5e-3
"""Relative: the published number has three digits."""
GIB = 2**30

PAPER_LAYER: dict[str, Any] = {
    "states": [{"name": "weight, gradient, two moments", "elements": "4 * P", "bytes": 4, "kind": "weights"}],
    "layer": [
        {"name": "q, k, v, output", "elements": "4 * T * a * d", "bytes": 4, "kind": "activations"},
        {"name": "scores", "elements": "B * a * S * L", "bytes": 4, "kind": "attention"},
        {"name": "attention residual", "elements": "T * h", "bytes": 4, "kind": "activations"},
        {"name": "MLP", "elements": "T * f", "bytes": 4, "kind": "activations", "part": "mlp"},
        {"name": "MLP residual", "elements": "T * h", "bytes": 4, "kind": "activations", "part": "mlp"},
    ],
}


def paper_elements(batch: int, length: int, **fields: Any) -> float:
    """Elements of the middle one of three stages, one bias-free layer each, one micro-batch."""
    model = encoder(
        num_layers=3,
        hidden_size=512,
        ffn_hidden_size=2048,
        qkv_bias=False,
        attention_output_bias=False,
        mlp_bias=False,
        norm="layernorm_without_weights",
        norm_bias=False,
        max_position_embeddings=None,
        position="none",
        position_rows=0,
    )
    asked = question(
        model,
        seq_len=length,
        gpus=24,
        global_batch_size=batch,
        implementation=trainer(**PAPER_LAYER),
        precision="fp32",
    )
    estimate = memory_estimate(asked, layout(asked, pp=3, micro_batch_size=batch, **fields))
    return estimate.stages[1].allocated_bytes / 4


@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize(("batch", "length"), [(2, 512), (12, 1024), (16, 2048)])
def test_whole_layer_of_the_paper(n: int, batch: int, length: int) -> None:
    # arXiv 2105.13120, tables 1 and 2 added: tp 48H^2/N + (8BLH + BZL^2)/N + 2BLH, sp 48H^2 + (10BLH +
    # BZL^2)/N
    H, Z, BL = 512, 8, batch * length
    tensor = paper_elements(batch, length, tp=n)
    sequence = paper_elements(batch, length, sp=n, attention="rsa")
    scores = batch * Z * length**2
    assert tensor == pytest.approx(48 * H**2 / n + (8 * BL * H + scores) / n + 2 * BL * H, rel=EXACT)
    assert sequence == pytest.approx(48 * H**2 + (10 * BL * H + scores) / n, rel=EXACT)
    # Sequence parallelism wins when BL > 24 H; (12, 1024) is the point where both are equal.
    assert np.sign(round(tensor - sequence)) == np.sign(BL - 24 * H)


def table_of(schedule: str, pp: int, microbatches: int, chunks: int = 1) -> LayoutTable:
    asked = question(decoder(num_layers=pp * chunks), gpus=pp, global_batch_size=microbatches)
    return from_layout(layout(asked, pp=pp, schedule=schedule, num_virtual_stages=chunks), asked.train)


@pytest.mark.parametrize(
    ("schedule", "pp", "microbatches", "chunks", "expected"),
    [
        ("1f1b", 4, 8, 1, [4, 3, 2, 1]),
        ("1f1b", 4, 2, 1, [2, 2, 2, 1]),
        ("gpipe", 4, 8, 1, [8, 8, 8, 8]),
        # Megatron-LM: the first stage holds p (1 + (p - 1)/(p v)); 8 stages of 3 chunks: 8 x 1.2917.
        ("interleaved", 8, 64, 3, [8 * (1 + 7 / 24) - 2 * i / 3 for i in range(8)]),
        ("zbv", 4, 8, 2, [4, 4, 4, 4]),
    ],
)
def test_micro_batches_in_flight(
    schedule: str, pp: int, microbatches: int, chunks: int, expected: list[float]
) -> None:
    table = table_of(schedule, pp, microbatches, chunks)
    found = [float(micro_batches_in_flight(table, stage)[0]) for stage in range(pp)]
    assert found == pytest.approx(expected, rel=EXACT)


def test_gpt3_activations_of_the_interleaved_first_stage() -> None:
    # Korthikanti et al., 175B: tp 8, pp 8, 3 chunks, sequence-parallel, selective: 12.35 GiB a GPU.
    asked = question(gpt(96, 12288, 96, 51200, 2048), gpus=64, implementation=trainer(layer=korthikanti()))
    estimate = memory_estimate(
        asked,
        layout(
            asked,
            tp=8,
            pp=8,
            schedule="interleaved",
            num_virtual_stages=3,
            tp_sequence_parallel=True,
            recompute="selective",
        ),
    )
    layer = 34 * 2048 * 12288 / 8
    kept = estimate.stages[0].by_kind["activations"] - layer * 80 / 34  # less the layer being recomputed
    assert kept / GIB == pytest.approx(12.35, rel=ROUNDED)


def random_table(asked: Question, rows: int, **pipeline: Any) -> LayoutTable:
    rng = np.random.default_rng(0)
    made = []
    for _ in range(rows):
        sp = int(rng.choice([1, 2, 4]))
        made.append(
            layout(
                asked,
                **pipeline,
                dp=int(rng.choice([1, 2, 4])),
                tp=int(rng.choice([1, 2, 4])),
                sp=sp,
                micro_batch_size=int(rng.choice([1, 2, 4])),
                zero_stage=int(rng.choice([0, 2, 3])),
                recompute=str(rng.choice(["none", "full"])),
                attention=str(rng.choice(["ring", "rsa"])) if sp > 1 else "none",
            )
        )
    return from_layouts(made, asked.train)


@pytest.mark.parametrize("model", [decoder(num_layers=12), encoder(num_layers=12)])
@pytest.mark.parametrize(
    "stage_layers", [(12,), (6, 6), (2, 4, 4, 2), (3, 1, 3, 2, 2, 1), (1,) * 12, (0, 12)]
)
def test_only_the_stages_that_can_be_worst_are_needed(model: Any, stage_layers: tuple[int, ...]) -> None:
    asked = question(model, global_batch_size=32)
    table = random_table(asked, 40, pp=len(stage_layers), stage_layers=stage_layers)
    few, every = memory_table(asked, table), memory_table(asked, table, every_stage=True)
    assert len(few.stages) <= len(every.stages) == len(stage_layers)
    assert np.allclose(few.allocated_bytes, every.allocated_bytes, rtol=EXACT)
    summed = sum(few.by_kind.values())
    assert np.allclose(summed, few.allocated_bytes, rtol=EXACT)
    for row in (0, 17, 39):  # one layout alone gives what its row of the table gives
        alone = memory_estimate(asked, table.row(row))
        assert alone.peak_bytes == pytest.approx(float(every.peak_bytes[row]), rel=EXACT)
        assert alone.stages[alone.worst_stage].peak_bytes == alone.peak_bytes


def llama_405b_question() -> Question:
    # arXiv 2407.21783, table 3 and 4: 131,072 tokens on 16,384 GPUs, tp 8, cp 16, pp 16, dp 8.
    model = decoder(
        num_layers=126,
        hidden_size=16384,
        ffn_hidden_size=53248,
        num_attention_heads=128,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=128256,
    )
    assert model.parameters() == pytest.approx(405.85e9, rel=1e-4)
    return question(model, seq_len=131072, gpus=16384, global_batch_size=128, on=cluster(num_nodes=2048))


def test_llama_405b_names_its_worst_stage() -> None:
    asked = llama_405b_question()
    shape = layout(asked, dp=8, pp=16, tp=8, sp=16, tp_sequence_parallel=True, zero_stage=2)
    estimate = memory_estimate(asked, shape)
    peaks = [stage.peak_bytes for stage in estimate.stages]
    assert len(peaks) == 16
    assert estimate.worst_stage == int(np.argmax(peaks))
    assert estimate.peak_bytes == max(peaks)
    # 1F1B holds p - i micro-batches: the worst is an early stage, whose layers the later ones share.
    assert estimate.worst_stage <= 1
    last = estimate.stages[15].by_kind
    assert estimate.stages[14].by_kind["logits"] == 0
    assert last["activations"] < estimate.stages[0].by_kind["activations"]


def logits_row_bytes(asked: Question, **fields: Any) -> float:
    (row,) = [row for row in our_trainer().head if row.name == "logits"]
    table = from_layout(layout(asked, **fields), asked.train)
    return float(np.asarray(row.size_bytes(layout_values(asked, table)))[0])


def test_logits_are_a_line_of_their_own() -> None:
    # labs-molt#121: 8,192 tokens of a rank x 248,320 rows x 4 bytes are 7.6 GiB at 64k tokens and sp 8.
    wide = question(decoder(vocab_size=248320), seq_len=65536, gpus=8, global_batch_size=1)
    in_fp32 = logits_row_bytes(wide, sp=8, precision="fp32")
    assert in_fp32 / GIB == pytest.approx(7.58, rel=1e-3)
    assert logits_row_bytes(wide, sp=8) == in_fp32 / 2
    held = memory_estimate(wide, layout(wide, sp=8, precision="fp32")).stages[0].by_kind["logits"]
    assert in_fp32 <= held < 1.1 * in_fp32  # their gradient is written over them
    # NeMo Automodel#3907: 32,768 tokens x 128,256 x 4 bytes are 16.8 GB.
    small = question(decoder(vocab_size=128256), seq_len=32768, gpus=1, global_batch_size=1)
    assert logits_row_bytes(small, precision="fp32") == 32768 * 128256 * 4


SIMPLE: dict[str, Any] = {
    "states": [
        {"name": "weights", "elements": "P", "bytes": 4, "kind": "weights"},
        {"name": "gradients", "elements": "P", "bytes": 4, "kind": "gradients"},
    ],
    "layer": [{"name": "kept", "elements": "T * h", "bytes": 2, "kind": "activations"}],
    "gradients_between_steps": False,
}


@pytest.mark.parametrize(
    ("tokens", "microbatches", "expected"),
    [
        # Long: all layers are kept while no gradient exists. Short: all gradients, one layer kept.
        (65536, 1, lambda p, kept: 4 * p + 8 * kept),
        (16, 1, lambda p, kept: 8 * p + kept),
        # A second micro-batch finds the gradients of the first.
        (65536, 2, lambda p, kept: 8 * p + 8 * kept),
    ],
)
def test_gradients_count_from_the_first_backward_on(tokens: int, microbatches: int, expected: Any) -> None:
    asked = question(
        decoder(vocab_size=8, tied_embeddings=True),
        seq_len=tokens,
        global_batch_size=microbatches,
        gpus=1,
        implementation=trainer(**SIMPLE),
    )
    memory = memory_estimate(asked, layout(asked))
    parameters, kept = asked.model.parameters(), tokens * 512 * 2
    head_gradients = 4 * (8 * 512 + 512)  # they exist when the layers' backward begins
    allowed = expected(parameters, kept)
    assert allowed <= memory.allocated_bytes <= allowed + head_gradients


def test_full_recompute_holds_the_inputs_and_one_layer() -> None:
    # Checkpoints of 8 layers and one layer in full (34 + 80 = 114 s b h against 2 s b h kept).
    asked = question(
        gpt(8, 12288, 96, 51200, 2048),
        gpus=1,
        global_batch_size=1,
        implementation=trainer(layer=korthikanti()),
    )
    memory = memory_estimate(asked, layout(asked, recompute="full"))
    unit = 2048 * 12288
    assert memory.stages[0].by_kind["activations"] == pytest.approx(unit * (8 * 2 + 112), rel=EXACT)


def test_overhead_is_its_own_row_and_decides_with_the_rest() -> None:
    on = cluster(context_bytes=5e8, communicator_bytes=1e8, fragmentation_fraction=0.05, memory_bytes=80e9)
    asked = question(gpus=32, on=on, headroom_fraction=0.1)
    shape = layout(asked, dp=2, pp=2, tp=2, sp=4)
    table = from_layout(shape, asked.train)
    assert communicators(table)[0] == 5  # dp, pp, tp, sp and dp x sp
    assert communicators(from_layout(layout(asked, dp=8), asked.train))[0] == 1
    memory = memory_estimate(asked, shape)
    assert memory.limit_bytes == pytest.approx(72e9)
    for stage in memory.stages:
        assert set(stage.by_kind) == set(MEMORY_KINDS)
        assert stage.allocated_bytes == pytest.approx(sum(stage.by_kind.values()))
        assert stage.overhead_by_kind["context"] == 5e8
        assert stage.overhead_by_kind["communicators"] == 5e8
        assert stage.overhead_by_kind["fragmentation"] == pytest.approx(0.05 * stage.allocated_bytes)
        assert stage.peak_bytes == stage.allocated_bytes + stage.overhead_bytes
    both = memory_table(asked, concatenate([table, table]))
    assert both.fits.tolist() == [True, True]
    tight = question(gpus=32, on=cluster(memory_bytes=memory.allocated_bytes))
    assert memory_table(tight, table).fits.tolist() == [True]
    loaded = question(gpus=32, on=cluster(memory_bytes=memory.allocated_bytes, context_bytes=1.0))
    assert memory_table(loaded, table).fits.tolist() == [False]


def test_ring_buffers_exist_only_with_a_ring() -> None:
    asked = question(decoder(vocab_size=64, ffn_hidden_size=64), seq_len=65536, gpus=8, global_batch_size=1)
    ring = memory_estimate(asked, layout(asked, sp=8, recompute="full"))
    alone = memory_estimate(asked, layout(asked, dp=8, recompute="full"))
    assert ring.stages[0].by_kind["ring_buffers"] > 0
    assert alone.stages[0].by_kind["ring_buffers"] == 0
    # Backward, bf16, 8192 tokens, 8 heads of 64, 4 kv heads in 4 groups (a hop of 4 heads' K and V is 8 MiB):
    # K and V twice (e), dK and dV twice (4), a block's dq, dk, dv (e) and dq in float32.
    tokens, kv, q = 8192, 4 * 64, 8 * 64
    expected = tokens * (4 * kv * 2 + 4 * kv * 4 + (q + 2 * kv) * 2 + q * 4) / 4
    assert ring.stages[0].by_kind["ring_buffers"] == expected
