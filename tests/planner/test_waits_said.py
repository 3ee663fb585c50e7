"""What the lines about links say of the waiting: its name, its cause, what would lessen it, what stays."""

from __future__ import annotations

import random
from typing import Any

import pytest

from seqplan.planner.choosing.placement import placement_lines, ring_condition
from seqplan.planner.memory_model import memory_estimate
from seqplan.planner.question import Question
from seqplan.planner.time_model import time_estimate
from seqplan.planner.timing.trainer_time import TrainerTime
from tests.planner.formula_cases import cluster, decoder, layout, question, trainer

SLOW: dict[str, Any] = {"inter": 0.2e9, "nics_per_node": 1}


def line(asked: Question, beginning: str, **fields: Any) -> str:
    chosen = layout(asked, **fields)
    found = placement_lines(asked, chosen, time_estimate(asked, chosen))
    (one,) = [each for each in found if each.startswith(beginning)]
    return one


def step_s(asked: Question, **fields: Any) -> float:
    return time_estimate(asked, layout(asked, **fields)).step_time_s


@pytest.mark.parametrize(
    ("zero_stage", "name"),
    [
        (0, "gradients over dp x sp=64: "),
        (1, "gradients and gathered weights over dp x sp=64: "),
        (2, "gradients and gathered weights over dp x sp=64: "),
        (3, "weights' gathers and gradients' reduction over dp x sp=64: "),
    ],
)
def test_what_travels_over_dp_and_sp_has_its_name(zero_stage: int, name: str) -> None:
    assert line(question(), name, dp=64, zero_stage=zero_stage)


SLOW_GATHERS = {"dp": 64, "zero_stage": 3, "micro_batch_size": 1}


def test_what_would_lessen_the_gathers_is_said_with_its_step() -> None:
    asked = question(on=cluster(**SLOW), global_batch_size=512)
    now, fewer, sharded_less = (
        step_s(asked, **{**SLOW_GATHERS, **change})
        for change in ({}, {"micro_batch_size": 2}, {"zero_stage": 2})
    )
    assert fewer < 0.6 * now  # 4 micro-batches for 8
    said = line(asked, "weights' gathers", **SLOW_GATHERS)
    assert said.endswith(
        "; each of the 8 micro-batches gathers the weights and reduces the gradients anew: "
        f"micro_batch_size=2 takes {fewer:.3g} s a step and zero_stage=2 takes {sharded_less:.3g} s a step, "
        f"instead of {now:.3g} s"
    )


def test_what_does_not_fit_says_how_much_it_lacks() -> None:
    roomy = question(on=cluster(**SLOW), global_batch_size=512)

    def peak(**change: Any) -> float:
        return memory_estimate(roomy, layout(roomy, **{**SLOW_GATHERS, **change})).peak_bytes

    assert peak() < peak(zero_stage=2) < peak(micro_batch_size=2)
    tight = cluster(**SLOW, memory_bytes=0.5 * (peak() + peak(zero_stage=2)))
    said = line(question(on=tight, global_batch_size=512), "weights' gathers", **SLOW_GATHERS)
    for change in ({"micro_batch_size": 2}, {"zero_stage": 2}):
        more = (peak(**change) - tight.device.memory_bytes) / 2**30
        (name,) = [f"{field}={value}" for field, value in change.items()]
        part = said[said.index(name) :]
        assert part[part.index("(") :].startswith(f"(but needs {more:,.1f} GiB more than there is)")


@pytest.mark.parametrize(
    ("batch", "rates", "fields"),
    [
        (512, {"inter": 100e9}, SLOW_GATHERS),  # hidden
        (64, SLOW, SLOW_GATHERS),  # once: there is one micro-batch
        (512, SLOW, {**SLOW_GATHERS, "zero_stage": 0}),  # once a step
        (512, SLOW, {**SLOW_GATHERS, "zero_stage": 1}),
    ],
)
def test_nothing_is_said_where_it_is_short_or_comes_once(
    batch: int, rates: dict[str, Any], fields: dict[str, Any]
) -> None:
    asked = question(on=cluster(**rates), global_batch_size=batch)
    lines = placement_lines(asked, layout(asked, **fields), time_estimate(asked, layout(asked, **fields)))
    assert "anew" not in " ".join(lines)


def test_with_zero_2_it_is_the_sums_that_come_again() -> None:
    asked = question(on=cluster(**SLOW), global_batch_size=512, implementation=trainer())
    said = line(asked, "gradients and gathered", **{**SLOW_GATHERS, "zero_stage": 2})
    assert "each of the 8 micro-batches reduces the gradients anew: " in said
    assert "zero_stage=1 takes " in said


LAYERS, KV_HEADS, HEAD_DIM = 8, 8, 64
LATENCY_S = 5e-6
GROUPS = 4
"""Of heads, that take turns: a hop is so many messages."""


def last_hop_s(tokens: float, latency_s: float = 0.0) -> float:
    """dK and dV of one layer: 2 x 4 bytes (float32) of tokens x kv heads x head size, over 100 GB/s."""
    return 2 * 4 * tokens * KV_HEADS * HEAD_DIM / 100e9 + GROUPS * latency_s


def ring_question(seq_len: int, gpus: int, batch: int, latency_s: float = 0.0) -> Question:
    model = decoder(num_layers=LAYERS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM)
    on = cluster(gpus_per_node=gpus, num_nodes=1, latency_s=latency_s)
    return question(
        model, seq_len=seq_len, gpus=gpus, global_batch_size=batch, on=on, implementation=trainer()
    )


def test_a_hidden_ring_says_what_is_left_and_its_share() -> None:
    asked = ring_question(seq_len=65536, gpus=4, batch=3, latency_s=LATENCY_S)
    chosen = layout(asked, sp=4, micro_batch_size=1)
    time = time_estimate(asked, chosen)
    hop_s = last_hop_s(65536 / 4, LATENCY_S)
    assert time.by_kind["sp"] == pytest.approx(3 * LAYERS * hop_s, rel=1e-9)
    share = 100 * 3 * LAYERS * hop_s / time.step_time_s
    assert share > 0.05  # it is seen in the text
    said = line(asked, "ring: ", sp=4, micro_batch_size=1)
    left = f"hidden, but for the last hop of dK and dV in each layer ({share:.1f} % of the step)"
    assert said.endswith(f"and there are 16,384: {left}")
    condition = ring_condition(asked, chosen)
    assert condition is not None
    assert condition.text.endswith("hidden, but for the last hop of dK and dV in each layer")


def test_rsa_leaves_nothing() -> None:
    """Each of its hops is behind a part of a block, the last one too."""
    asked = ring_question(seq_len=262144, gpus=4, batch=1)
    said = line(asked, "ring: ", sp=4, attention="rsa", micro_batch_size=1)
    assert said.endswith(": hidden")
    assert time_estimate(asked, layout(asked, sp=4, attention="rsa")).by_kind["sp"] == 0.0


@pytest.mark.parametrize("in_bf16", [False, True])
def test_hidden_and_the_time_of_sp_never_contradict(in_bf16: bool) -> None:
    """Hidden: sp takes the last hops alone. Not hidden: more. Gradients travel in float32 or in bf16."""
    costs = TrainerTime(ring_gradients_in_compute_dtype=in_bf16)
    draw, hidden = random.Random(3), 0
    for _ in range(60):
        gpus, batch = draw.choice([2, 4, 8]), draw.choice([1, 2, 4])
        seq_len = draw.choice([512, 2048, 8192, 32768])
        asked = ring_question(seq_len, gpus, batch)
        trains = asked.implementation.model_copy(update={"time": costs})
        asked = asked.model_copy(update={"implementation": trains})
        rows = draw.choice([1, batch])
        recompute = draw.choice(["none", "selective", "full"])
        chosen = layout(asked, sp=gpus, micro_batch_size=rows, recompute=recompute)
        condition = ring_condition(asked, chosen)
        assert condition is not None
        last_s = batch / rows * LAYERS * last_hop_s(rows * seq_len / gpus) / (2 if in_bf16 else 1)
        waited_s = time_estimate(asked, chosen).by_kind["sp"]
        hidden += condition.hidden
        assert (waited_s <= last_s * (1 + 1e-6)) == condition.hidden, (seq_len, gpus, batch, rows, recompute)
    assert 15 < hidden < 45
