"""Step time: limits that any right model has, published FLOPs, and sums made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from seqplan.planner.choosing.layout_table import from_layouts
from seqplan.planner.model_spec import ModelSpec
from seqplan.planner.question import Question
from seqplan.planner.results import TIME_KINDS, TimeEstimate
from seqplan.planner.time_model import time_estimate, time_table
from seqplan.planner.timing.flops import model_flops_per_step
from seqplan.profiles import load_cluster, load_implementation
from tests.planner.formula_cases import cluster, decoder, encoder, gpt, layout, our_trainer, question, trainer

EXACT = 1e-9
FREE_MEMORY: dict[str, Any] = {"memory_bytes_per_s": 1e30}
"""Nothing waits for the device's memory: only FLOPs and links cost time."""


def estimate(asked: Question, **fields: Any) -> TimeEstimate:
    """Time of one layout."""
    return time_estimate(asked, layout(asked, **fields))


def kind(asked: Question, name: str, **fields: Any) -> float:
    """Seconds of one kind."""
    return estimate(asked, **fields).by_kind[name]


def test_mfu_of_pure_compute_is_the_efficiency() -> None:
    # Materialised attention in an encoder computes just what MFU counts, at the matmuls' efficiency.
    asked = question(encoder(vocab_size=1024), gpus=1, on=cluster(matmul_efficiency=0.6, **FREE_MEMORY))
    found = estimate(asked, kernel="math")
    assert found.mfu == pytest.approx(0.6, rel=1e-6)
    # Fused attention computes 7 matmuls where MFU counts 6.
    assert estimate(asked, kernel="flash").mfu < 0.6


def test_tokens_per_second_and_mfu_follow_from_the_step() -> None:
    asked = question(gpus=64, global_batch_size=128, seq_len=2048)
    found = estimate(asked, dp=8, tp=4, sp=2)
    assert found.tokens_per_s_per_gpu == pytest.approx(128 * 2048 / 64 / found.step_time_s, rel=EXACT)
    flops = model_flops_per_step(asked.model, 2048, 128)
    assert found.mfu == pytest.approx(flops / (64 * 100e12 * found.step_time_s), rel=EXACT)


@pytest.mark.parametrize(
    "fields",
    [
        {"dp": 64},
        {"dp": 2, "pp": 4, "tp": 2, "sp": 4},
        {"dp": 8, "sp": 8, "zero_stage": 3, "recompute": "full"},
        {"pp": 4, "sp": 16, "attention": "rsa"},
        {"dp": 8, "pp": 8, "micro_batch_size": 2, "zero_stage": 2},
        {"dp": 8, "tp": 8, "tp_sequence_parallel": True},
    ],
)
def test_kinds_sum_to_the_step(fields: dict[str, Any]) -> None:
    found = estimate(question(), **fields)
    assert set(found.by_kind) == set(TIME_KINDS)
    assert sum(found.by_kind.values()) == found.step_time_s
    assert all(seconds >= 0 for seconds in found.by_kind.values())
    assert 0 <= found.bubble_fraction < 1


def test_one_gpu_communicates_nothing() -> None:
    asked = question(gpus=1, global_batch_size=4, on=cluster(latency_s=1e-3))
    found = estimate(asked)
    for name in ("tp", "sp", "pp", "dp", "bubble", "recompute"):
        assert found.by_kind[name] == 0.0, name
    assert found.bubble_fraction == 0.0
    assert not [note for note in found.notes if note.startswith("assumed")]  # nothing overlaps
    assert found.by_kind["compute"] > 0
    # Adam: 28 bytes, the norm 4, the bf16 copy 2, at 1 TB/s.
    rows = asked.model.parameters() + 2 * 24 * 512  # vocabulary 1000 padded to 1024, two tables
    assert found.by_kind["optimizer"] == pytest.approx(34 * rows / 1e12, rel=EXACT)


def test_what_was_never_timed_on_a_gpu_says_so() -> None:
    """A profile measured here is of CPU ranks, which the model was held against."""
    own, timed = load_implementation("seqplan"), load_implementation("nanotron")
    on_cpu = load_cluster("local")
    for by, on, said in ((own, cluster(), 1), (timed, cluster(), 0), (own, on_cpu, 0)):
        asked = question(gpus=1, global_batch_size=4, on=on).model_copy(update={"implementation": by})
        assert sum("timed on a GPU" in note for note in estimate(asked).notes) == said, by.name


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("tp", {"dp": 8, "tp": 8}),
        ("sp", {"dp": 4, "sp": 16}),
        ("pp", {"dp": 8, "pp": 8}),
    ],
)
def test_twice_the_links_halve_what_is_exposed(name: str, fields: dict[str, Any]) -> None:
    # With computation free nothing is hidden.
    free: dict[str, Any] = {**FREE_MEMORY, "peak_flops_per_s": 1e30}
    one = kind(question(on=cluster(**free)), name, **fields)
    two = kind(question(on=cluster(intra=200e9, inter=20e9, **free)), name, **fields)
    assert one == pytest.approx(2 * two, rel=1e-6)
    assert one > 0


def test_tensor_parallel_time_by_hand() -> None:
    # One sequence of 2048: 8 layers, 4 all-reduces each of 2 x 2048 x 512 bytes over 8 ranks at 100
    # GB/s, one of the
    # embedding, one of the head's input gradient, three of 4 x 2048 bytes in the loss.
    asked = question(gpus=8, global_batch_size=1)
    factor = 2 * 7 / 8 / 100e9
    expected = factor * ((8 * 4 + 2) * 2 * 2048 * 512 + 3 * 4 * 2048)
    assert kind(asked, "tp", tp=8) == pytest.approx(expected, rel=EXACT)
    # With sequence-parallel norms the backward gathers the linears' input once more in each block.
    gathers = 8 * 2 * (factor / 2) * 2 * 2048 * 512
    split = kind(asked, "tp", tp=8, tp_sequence_parallel=True)
    assert split == pytest.approx(expected + gathers, rel=EXACT)
    # Full recomputation repeats the forward's.
    again = kind(asked, "tp", tp=8, recompute="full")
    assert again == pytest.approx(expected + factor * 8 * 2 * 2 * 2048 * 512, rel=EXACT)


def test_causal_halves_the_attention_and_nothing_else() -> None:
    def compute(model: ModelSpec, seq_len: int) -> float:
        asked = question(model, seq_len=seq_len, gpus=1, global_batch_size=1, on=cluster(**FREE_MEMORY))
        return kind(asked, "compute")

    same = {"architecture": "encoder", "head": "lm"}
    for seq_len in (1024, 8192):
        attention = 8 * 3.5 * 4 * seq_len**2 * 512 / 50e12
        difference = compute(decoder(**same), seq_len) - compute(decoder(), seq_len)
        assert difference == pytest.approx(attention / 2, rel=1e-6)


@pytest.mark.parametrize("attention", ["ring", "rsa"])
def test_sequence_parallelism_divides_the_compute(attention: str) -> None:
    on = cluster(**FREE_MEMORY)
    asked = question(encoder(), gpus=8, global_batch_size=1, seq_len=8192, on=on)
    alone = question(encoder(), gpus=1, global_batch_size=1, seq_len=8192, on=on)
    kernel = "math" if attention == "rsa" else "flash"
    part = kind(asked, "compute", sp=8, attention=attention, kernel=kernel)
    assert part == pytest.approx(kind(alone, "compute", kernel=kernel) / 8, rel=1e-6)


def test_recompute_costs_one_forward() -> None:
    asked = question(gpt(8, 512, 8, 1024, 2048), gpus=1, on=cluster(**FREE_MEMORY))
    s = 2048
    layer_forward = 24 * s * 512**2 + 2 * s * s * 512  # linears and causal attention
    expected = 64 * 8 * layer_forward / 50e12
    assert kind(asked, "recompute", recompute="full") == pytest.approx(expected, rel=EXACT)
    half = kind(asked, "recompute", recompute="full", recompute_layers=4)
    assert half == pytest.approx(expected / 2, rel=EXACT)
    core = 64 * 8 * 2 * s * s * 512 / 50e12
    assert kind(asked, "recompute", recompute="selective") == pytest.approx(core, rel=EXACT)
    assert kind(asked, "recompute") == 0.0


def middle_heavy(microbatches: int, pp: int) -> Question:
    """No head and no embedding cost: all stages alike."""
    model = decoder(num_layers=8, head="none", vocab_size=8)
    free = cluster(**FREE_MEMORY, intra=1e30, inter=1e30)
    return question(model, gpus=pp, global_batch_size=microbatches, on=free, implementation=trainer())


@pytest.mark.parametrize(("pp", "microbatches"), [(2, 2), (4, 8), (8, 8), (8, 64)])
def test_bubble_of_equal_stages(pp: int, microbatches: int) -> None:
    # 1F1B: (p - 1) / m of the ideal time; as a share of the step (p - 1) / (m + p - 1).
    found = estimate(middle_heavy(microbatches, pp), pp=pp)
    ratio = found.by_kind["bubble"] / found.by_kind["compute"]
    assert ratio == pytest.approx((pp - 1) / microbatches, rel=1e-6)
    assert found.bubble_fraction == pytest.approx((pp - 1) / (microbatches + pp - 1), rel=1e-6)


def test_interleaving_divides_the_bubble() -> None:
    asked = middle_heavy(8, 4)
    plain = kind(asked, "bubble", pp=4)
    assert kind(asked, "bubble", pp=4, schedule="interleaved", num_virtual_stages=2) == pytest.approx(
        plain / 2
    )
    assert kind(asked, "bubble", pp=4, schedule="gpipe") == pytest.approx(plain, rel=EXACT)


def test_the_slowest_stage_sets_the_pace() -> None:
    asked = middle_heavy(16, 2)
    even = estimate(asked, pp=2, stage_layers=[4, 4])
    uneven = estimate(asked, pp=2, stage_layers=[5, 3])
    layer = even.by_kind["compute"] / 16 / 4
    assert uneven.by_kind["compute"] == pytest.approx(16 * 5 * layer, rel=EXACT)
    # Forwards take a third (a little less with fused attention). The second stage's 3 layers wait for
    # nothing; of them the first stage waits for what its one warm-up forward of 5 layers does not cover, and
    # for nothing at the end.
    assert uneven.by_kind["bubble"] == pytest.approx((3 - 5 / 3) * layer, rel=0.1)
    assert uneven.step_time_s > even.step_time_s


def test_stage_boundaries_by_hand() -> None:
    # Two stages of one node, 4 micro-batches: each sends once a micro-batch, 2 x 2048 x 512 bytes at
    # 100 GB/s; the
    # other stage's transfer of the fill is in the bubble.
    asked = question(gpus=2, global_batch_size=4, implementation=our_trainer())
    hop = 2 * 2048 * 512 / 100e9
    assert kind(asked, "pp", pp=2) == pytest.approx(4 * hop, rel=EXACT)
    tied = question(decoder(tied_embeddings=True), gpus=2, global_batch_size=4)
    # Both copies of the 1024 x 512 table (1000 padded to a multiple of 64): an all-reduce of two, float32.
    assert kind(tied, "pp", pp=2) == pytest.approx(4 * hop + 4 * 1024 * 512 / 100e9, rel=EXACT)


def test_gradient_reduction_by_hand() -> None:
    # Nothing hides it: computation is free. 8 ranks of a node; float32 gradients, bf16 weights.
    free = cluster(**FREE_MEMORY, peak_flops_per_s=1e30)
    asked = question(decoder(vocab_size=1024), gpus=8, global_batch_size=16, on=free)
    p, ring = asked.model.parameters(), 7 / 8 / 100e9
    for fields in ({"dp": 8}, {"dp": 4, "sp": 2}):  # gradients are summed over dp and sp alike
        microbatches = 16 // fields["dp"]
        reduce, gather = ring * 4 * p, ring * 2 * p
        assert kind(asked, "dp", **fields) == pytest.approx(2 * reduce, rel=1e-5)
        zero2 = kind(asked, "dp", zero_stage=2, **fields)
        assert zero2 == pytest.approx(microbatches * reduce + reduce / 8 + gather, rel=1e-5)
        zero3 = kind(asked, "dp", zero_stage=3, **fields)
        once = (reduce + gather) / 8
        assert zero3 == pytest.approx(microbatches * (2 * gather + reduce) + once, rel=1e-5)


def test_gradient_reduction_hides_behind_backward() -> None:
    # So slow a computation that only the last of 8 buckets is left.
    slow = cluster(**FREE_MEMORY, peak_flops_per_s=1e10)
    asked = question(decoder(vocab_size=1024), gpus=8, on=slow)
    reduce = 2 * 7 / 8 / 100e9 * 4 * asked.model.parameters()
    assert kind(asked, "dp", dp=8) == pytest.approx(reduce / 8, rel=EXACT)


def test_cpu_ranks_share_the_cores() -> None:
    def compute(cores: int | None, ranks: int) -> float:
        changes: dict[str, Any] = {} if cores is None else {"cores_per_node": cores}
        on = cluster(gpus_per_node=ranks, num_nodes=1, kind="cpu", **changes)
        return kind(question(gpus=ranks, global_batch_size=8, on=on), "compute", dp=ranks)

    assert compute(2, 2) == pytest.approx(compute(None, 2), rel=EXACT)
    assert compute(2, 8) == pytest.approx(4 * compute(None, 8), rel=EXACT)
    assert compute(64, 8) == pytest.approx(compute(None, 8), rel=EXACT)


def test_every_counted_overlap_is_said() -> None:
    notes = estimate(question(), dp=2, pp=4, tp=2, sp=4).notes
    for words in ("ring hop", "last micro-batch's backward", "tensor-parallel", "between stages"):
        assert any(words in note and note.startswith("assumed:") for note in notes), words
    assert "gathers" in " ".join(estimate(question(), dp=64, zero_stage=3).notes)


def test_a_table_gives_what_its_layouts_give() -> None:
    asked = question(global_batch_size=64)
    shapes = [
        layout(asked, pp=2, **fields)
        for fields in (
            {"dp": 32},
            {"dp": 8, "tp": 4},
            {"dp": 4, "sp": 8, "zero_stage": 3},
            {"dp": 4, "tp": 2, "sp": 4, "recompute": "full", "attention": "rsa"},
            {"dp": 16, "tp": 2, "tp_sequence_parallel": True, "micro_batch_size": 2},
        )
    ]
    times = time_table(asked, from_layouts(shapes, asked.train))
    alone = [time_estimate(asked, shape) for shape in shapes]
    assert np.allclose(times.step_time_s, [t.step_time_s for t in alone], rtol=EXACT)
    assert np.allclose(times.mfu, [t.mfu for t in alone], rtol=EXACT)
    for name in TIME_KINDS:
        assert np.allclose(times.by_kind[name], [t.by_kind[name] for t in alone], rtol=EXACT), name
