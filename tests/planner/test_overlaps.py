"""Overlaps: each has a name, can be switched off and is said; a faster machine is never slower."""

from __future__ import annotations

import random
from typing import Any

import pytest

from seqplan.planner.choosing.placement import CLOSE, ring_condition
from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import Layout
from seqplan.planner.memory_model import memory_estimate
from seqplan.planner.question import Question
from seqplan.planner.reading.quantity import Quantity
from seqplan.planner.results import TimeEstimate
from seqplan.planner.time_model import time_estimate
from seqplan.planner.timing.overlaps import OFF, without
from seqplan.planner.timing.trainer_time import TrainerTime
from tests.planner.formula_cases import cluster, decoder, encoder, layout, our_trainer, question, trainer

SHARED_OUT = 1e-3
"""Relative: what a micro-batch waits for counts as backward when a pipeline's bubble is shared out."""
FREE_MEMORY: dict[str, Any] = {"memory_bytes_per_s": 1e30}

OVERLAPPING = TrainerTime(transfers_overlap=True, tp_exposed_share=Quantity(0.1, "as NeMo's"))


def asked(time: TrainerTime = OVERLAPPING, **changes: Any) -> Question:
    found = question(gpus=64, global_batch_size=64, seq_len=16384, **changes)
    return found.model_copy(update={"implementation": trainer().model_copy(update={"time": time})})


# A layout that each overlap speeds up, and what its notes say with it and without it.
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "ring": ({"dp": 4, "sp": 16}, "each ring hop runs behind", "nothing hides the ring's hops"),
    "reduction": ({"dp": 64}, "the reduction runs behind", "nothing hides the reduction"),
    "gather": ({"dp": 64, "zero_stage": 1}, "the gather behind the first", "nothing hides the gather"),
    "prefetch": (
        {"dp": 64, "zero_stage": 3},
        "layer's gathers and reduce-scatter",
        "layer's reduce-scatter run",
    ),
    "transfers": (
        {"dp": 4, "pp": 2, "tp": 8, "schedule": "interleaved", "num_virtual_stages": 2},
        "other chunks hide",
        "nothing hides the transfers",
    ),
    "tp": ({"dp": 8, "tp": 8}, "matmuls hide 90 %", "nothing hides the tensor-parallel"),
}


@pytest.mark.parametrize("name", OFF)
def test_every_overlap_can_be_switched_off_and_is_said(name: str) -> None:
    fields, on, off = CASES[name]
    whole = asked()
    with_it = time_estimate(whole, layout(whole, **fields))
    bare = asked(without(OVERLAPPING, [name]))
    alone = time_estimate(bare, layout(bare, **fields))
    assert alone.step_time_s > with_it.step_time_s * (1 + 1e-4)
    assert on in " ".join(with_it.notes)
    assert off in " ".join(alone.notes)
    every = asked(without(OVERLAPPING, ["all"]))
    assert time_estimate(every, layout(every, **fields)).step_time_s >= alone.step_time_s


def test_an_unknown_overlap_is_told() -> None:
    with pytest.raises(SeqplanError, match="no overlap is called rings; use ring, reduction"):
        without(OVERLAPPING, ["rings"])


def test_gradients_have_what_the_ring_leaves_of_a_link() -> None:
    """Devices of one node: the ring takes the same link, so that its time and the gradients' add up."""
    on = cluster(gpus_per_node=64, num_nodes=1, intra=5e9, inter=5e9, **FREE_MEMORY)
    busy = asked(TrainerTime(), on=on, model=decoder(num_kv_heads=8, vocab_size=1024))
    found = time_estimate(busy, layout(busy, dp=8, sp=8))
    # Links so slow that computation hides nothing more: the step is no shorter than all that they carry.
    p, n = busy.model.parameters(), 64
    tokens, hops, layers, micro_batches = 16384 / 8, 7, 8, 8
    ring = layers * micro_batches * hops * (2 * 2 + 2 * 4 + 2 * 2) * tokens * 512 / 5e9
    reduction = 2 * (n - 1) / n * 4 * p / 5e9
    assert found.step_time_s >= ring + reduction
    assert found.by_kind["sp"] + found.by_kind["dp"] <= ring + reduction


@pytest.mark.parametrize(("kv_heads", "causal"), [(8, True), (1, True), (8, False)])
def test_from_how_many_tokens_the_ring_hides(kv_heads: int, causal: bool) -> None:
    """S = e g F / B (causal zigzag; else half of it), with F = 50 TFLOP/s, B = 100 GB/s one way, e = 2; the
    backward computes 2.5 times as much and sends K and V with gradients in float32: 3 times as much."""
    make = decoder if causal else encoder
    on = cluster(**FREE_MEMORY)
    ring = question(
        make(num_layers=1, num_kv_heads=kv_heads), seq_len=8192, gpus=8, global_batch_size=1, on=on
    )
    threshold = 2 * kv_heads / 8 * 50e12 / 100e9 / (1 if causal else 2)
    condition = ring_condition(ring, layout(ring, sp=8))
    assert condition is not None
    assert condition.hides_from is not None
    assert condition.hides_from == pytest.approx(1.2 * threshold, rel=CLOSE - 1)
    assert f"from {condition.hides_from:,} tokens a rank" in condition.text
    assert condition.tokens_per_rank == 1024
    assert condition.hidden == (condition.hides_from <= 1024)


def random_layouts(count: int, seed: int) -> list[dict[str, Any]]:
    """Layouts of 64 devices, each with its options at random."""
    draw = random.Random(seed)
    found: list[dict[str, Any]] = []
    while len(found) < count:
        dp, pp, tp = (draw.choice([1, 2, 4, 8]) for _ in range(3))
        if 64 % (dp * pp * tp):
            continue
        fields: dict[str, Any] = {"dp": dp, "pp": pp, "tp": tp, "sp": 64 // (dp * pp * tp)}
        fields["zero_stage"] = draw.choice([0, 1, 2, 3])
        fields["recompute"] = draw.choice(["none", "selective", "full"])
        fields["micro_batch_size"] = draw.choice([1, 2])
        fields["tp_sequence_parallel"] = tp > 1 and draw.random() < 0.5
        fields["mesh_order"] = draw.choice([["pp", "dp", "sp", "tp"], ["pp", "sp", "dp", "tp"]])
        if fields["sp"] > 1:
            fields["attention"] = draw.choice(["ring", "rsa"])
        found.append(fields)
    return found


FASTER: dict[str, Any] = {
    "peak_flops_per_s": 2 * 100e12,
    "memory_bytes_per_s": 2 * 1e12,
    "intra": 2 * 100e9,
    "inter": 2 * 10e9,
}
"""Twice what formula_cases.cluster has by itself."""


@pytest.mark.parametrize("faster", FASTER)
def test_a_faster_machine_is_never_slower(faster: str) -> None:
    for number, fields in enumerate(random_layouts(24, seed=7)):
        seq_len = (512, 4096, 32768)[number % 3]
        slow, fast = (
            question(gpus=64, global_batch_size=64, seq_len=seq_len, on=cluster(**changes))
            for changes in ({}, {faster: FASTER[faster]})
        )
        steps = [seconds(each, layout(each, **fields)) for each in (slow, fast)]
        assert steps[1] <= steps[0] * (1 + SHARED_OUT), (fields, seq_len)


def seconds(of: Question, chosen: Layout) -> float:
    found: TimeEstimate = time_estimate(of, chosen)
    return found.step_time_s


def test_a_full_memory_slows_down_whatever_the_user_keeps_free() -> None:
    """Seen in the sweep of nanotron: 5 times as long from 0.91 of the device's memory on."""
    pressed = TrainerTime(
        memory_pressure_share=Quantity(0.5, "test"), memory_pressure_factor=Quantity(5.0, "test")
    )
    ours = our_trainer()
    hurried = ours.model_copy(update={"time": pressed})
    plain = question(implementation=ours)
    peak = memory_estimate(plain, layout(plain, dp=64)).peak_bytes
    usual = seconds(plain, layout(plain, dp=64))
    for headroom in (0.0, 0.4):
        for share, factor in ((0.4, 1.0), (0.6, 5.0)):
            on = cluster(memory_bytes=peak / share)
            full = question(implementation=hurried, on=on, headroom_fraction=headroom)
            assert seconds(full, layout(full, dp=64)) == pytest.approx(factor * usual, rel=1e-9)
