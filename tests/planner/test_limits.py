"""The longest sequence and the largest batch: the paper's ratios, and brute force over small cases.

The paper's figures are of arXiv 2105.13120 (text of sections 4.2 and 4.3, appendices C and E), measured on
P100 with the trainer that profiles/implementations/megatron-2021.yaml describes.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

from seqplan import profiles
from seqplan.planner.choosing.fewest_devices import fewest_devices
from seqplan.planner.errors import SeqplanError
from seqplan.planner.layout import Layout
from seqplan.planner.layout_defaults import complete_layout
from seqplan.planner.limits import Limits, Searched, device_counts, find_limits
from seqplan.planner.memory_model import memory_estimate
from seqplan.planner.question import Pins, Question
from seqplan.planner.rules.legality import verdict
from seqplan.planner.train_spec import TrainSpec
from tests.planner.formula_cases import our_trainer
from tests.planner.samples import cluster, decoder, encoder, question

BATCH_RATIO = 0.10
LENGTH_RATIO = 0.15
"""How far our ratios may be from the paper's, whose lengths are "around"."""

AS_PUBLISHED = Pins(dp=1, recompute="none", tp_sequence_parallel=False)
"""The paper's runs: no recomputation, and tensor parallelism of before 2022."""


def ask(
    model: str, where: str, trainer: str, *, seq_len: int = 512, batch: int = 64, **train: Any
) -> Question:
    return Question(
        model=profiles.load_model(model)[0],
        cluster=profiles.load_cluster(where).for_gpus(64),
        gpus=64,
        train=TrainSpec(seq_len=seq_len, global_batch_size=batch, **train),
        implementation=profiles.load_implementation(trainer),
    )


@functools.cache
def published(model: str, searched: Searched, batch: int, headroom: float) -> Limits:
    train: dict[str, Any] = {"precision": "fp16", "hidden_dropout": 0.1, "attention_dropout": 0.1}
    asked = ask(model, "piz-daint", "megatron-2021", batch=batch, headroom_fraction=headroom, **train)
    return find_limits(asked, searched, AS_PUBLISHED, ("tp", "sp"), (12, 16, 64))


def value(limits: Limits, family: str, gpus: int) -> int:
    (found,) = [limit for limit in limits.limits if (limit.family, limit.gpus) == (family, gpus)]
    assert found.value is not None, found.why_not
    return found.value


@pytest.mark.parametrize("headroom", [0.0, 0.05])
@pytest.mark.parametrize(
    ("model", "searched", "batch", "sp", "tp", "paper", "within"),
    [
        ("bert-base", "global_batch_size", 1, 64, 12, 13.7, BATCH_RATIO),
        ("bert-large", "global_batch_size", 1, 16, 16, 2.7, BATCH_RATIO),
        ("bert-large", "global_batch_size", 1, 64, 16, 10.2, BATCH_RATIO),
        ("bert-base", "seq_len", 64, 64, 12, 3.0, LENGTH_RATIO),
        ("bert-large", "seq_len", 16, 64, 16, 2.0, LENGTH_RATIO),
    ],
)
def test_the_papers_ratios(
    model: str, searched: Searched, batch: int, sp: int, tp: int, paper: float, within: float, headroom: float
) -> None:
    limits = published(model, searched, batch, headroom)
    assert value(limits, "sp", sp) / value(limits, "tp", tp) == pytest.approx(paper, rel=within)


def test_tp_16_of_12_heads_does_not_exist_and_what_does() -> None:
    """Section 4.3 says 1.4 times for 16 devices each; 12 heads reach 12 devices, and there it is 1.4."""
    limits = published("bert-base", "seq_len", 64, 0.0)
    (impossible,) = [limit for limit in limits.limits if (limit.family, limit.gpus) == ("tp", 16)]
    assert impossible.value is None
    assert impossible.why_not.startswith(
        "tp=16 does not divide num_attention_heads=12; use 1, 2, 3, 4, 6 or 12"
    )
    tp = value(limits, "tp", 12)
    assert value(limits, "sp", 12) / tp == pytest.approx(1.4, rel=LENGTH_RATIO)
    assert value(limits, "sp", 16) / tp > 1.4 * (1 + LENGTH_RATIO)


def test_how_much_farther_a_ring_goes_than_the_paper() -> None:
    """No scores are kept: on the same P100 (in fp32, which our trainer has there) and on H100 (in bf16)."""
    paper = value(published("bert-base", "seq_len", 64, 0.0), "sp", 64)
    pins = Pins(dp=1, recompute="none")

    def ring(where: str) -> int:
        return value(
            find_limits(ask("bert-base", where, "seqplan"), "seq_len", pins, ("sp",), (64,)), "sp", 64
        )

    assert ring("piz-daint") > 7 * paper
    # What is kept is linear in the length: 5 times the memory, and half the bytes of a number.
    assert ring("dgx-h100") / ring("piz-daint") == pytest.approx(2 * 79.1 / 15.9, rel=0.05)


# Against brute force: every layout and every value, one at a time


def small(**changes: Any) -> Question:
    """4 devices of 1.5 GiB, so that values are small enough to try them all."""
    model = decoder(
        num_layers=4,
        hidden_size=512,
        ffn_hidden_size=1536,
        num_attention_heads=8,
        num_kv_heads=4,
        vocab_size=2048,
        name="small",
    )
    where = cluster(memory_gib=1.5, num_nodes=1, gpus_per_node=4)
    fields: dict[str, Any] = {"seq_len": 1024, "global_batch_size": 8, "where": where}
    return question(model, 4, implementation=our_trainer(), **{**fields, **changes})


def layouts(asked: Question, micro_batch_size: int, axes: str) -> list[Layout]:
    """Every legal layout on 4 devices that uses no other axes."""
    found = []
    degrees = [
        (dp, pp, tp, sp) for dp in (1, 2, 4) for pp in (1, 2, 4) for tp in (1, 2, 4) for sp in (1, 2, 4)
    ]
    for dp, pp, tp, sp in degrees:
        used = {
            name
            for name, degree in zip(("dp", "pp", "tp", "sp"), (dp, pp, tp, sp), strict=True)
            if degree > 1
        }
        if dp * pp * tp * sp != 4 or not used <= set(axes.split()):
            continue
        for zero in (0, 2, 3) if dp * sp > 1 else (0,):
            for recompute in ("none", "full"):
                for attention in ("none",) if sp == 1 else ("ring", "rsa"):
                    for split in (False, True) if tp > 1 else (False,):
                        given: dict[str, Any] = {
                            "dp": dp,
                            "pp": pp,
                            "tp": tp,
                            "sp": sp,
                            "micro_batch_size": micro_batch_size,
                        }
                        given |= {"zero_stage": zero, "recompute": recompute, "attention": attention}
                        layout = complete_layout(asked, {**given, "tp_sequence_parallel": split})
                        if verdict(asked, layout).runnable:
                            found.append(layout)
    return found


def fits(asked: Question, layout: Layout) -> bool:
    memory = memory_estimate(asked, layout)
    return memory.peak_bytes <= memory.limit_bytes


@pytest.mark.parametrize(
    ("family", "axes"), [("sp", "sp"), ("tp", "tp"), ("sp+pp", "sp pp"), ("all", "dp pp tp sp")]
)
def test_nothing_longer_fits(family: str, axes: str) -> None:
    asked = small(global_batch_size=4)
    (limit,) = find_limits(asked, "seq_len", Pins(), (family,), (4,)).limits
    assert limit.value is not None
    assert limit.layout is not None
    at = asked.model_copy(update={"train": asked.train.model_copy(update={"seq_len": limit.value})})
    assert verdict(at, limit.layout).runnable
    assert fits(at, limit.layout)
    # The next length for every divisor that 4 devices can have, and one well above.
    above = {(limit.value // step + 1) * step for step in (1, 2, 4, 8)} | {limit.value * 9 // 64 * 8}
    for seq_len in sorted(above):
        longer = asked.model_copy(update={"train": asked.train.model_copy(update={"seq_len": seq_len})})
        for micro in (1, 2, 4):
            for layout in layouts(longer, micro, axes):
                whole = 4 // layout.dp // micro == (layout.pp if layout.pp > 1 else 1)
                assert not (whole and fits(longer, layout)), (seq_len, layout)


@pytest.mark.parametrize(
    ("family", "axes"), [("sp", "sp"), ("tp", "tp"), ("sp+pp", "sp pp"), ("all", "dp pp tp sp")]
)
def test_no_larger_batch_fits(family: str, axes: str) -> None:
    asked = small(seq_len=512)
    (limit,) = find_limits(asked, "global_batch_size", Pins(), (family,), (4,)).limits
    assert limit.value is not None
    assert limit.layout is not None

    def with_batch(batch: int) -> Question:
        return asked.model_copy(update={"train": asked.train.model_copy(update={"global_batch_size": batch})})

    assert verdict(with_batch(limit.value), limit.layout).runnable
    assert fits(with_batch(limit.value), limit.layout)
    for batch in range(limit.value + 1, limit.value + 9):
        larger = with_batch(batch)
        for micro in {batch // (dp * m) for dp in (1, 2, 4) for m in (1, 2, 4) if batch % (dp * m) == 0}:
            for layout in layouts(larger, micro, axes):
                whole = batch // layout.dp // micro == (layout.pp if layout.pp > 1 else 1)
                assert not (whole and fits(larger, layout)), (batch, layout)


def test_a_fused_softmax_that_takes_fours() -> None:
    """12 heads over 12 ranks: one head each, so that only batches of fours are fused."""
    limits = published("bert-base", "global_batch_size", 1, 0.0)
    assert value(limits, "tp", 12) % 4 == 0


# What is asked, and what is refused


def test_learned_positions_grow_with_the_length() -> None:
    asked = question(encoder(), 8, global_batch_size=8, implementation=our_trainer())
    (limit,) = find_limits(asked, "seq_len", Pins(), ("sp",), (8,)).limits
    assert limit.value is not None
    assert limit.value > 512  # the table that the model has
    assert limit.value % 8 == 0


def test_pinned_micro_batches_allow_accumulation() -> None:
    asked = small(global_batch_size=64)
    whole, accumulated = (
        find_limits(asked, "seq_len", pins, ("sp",), (4,)).limits[0].value
        for pins in (Pins(), Pins(micro_batch_size=1))
    )
    assert whole is not None
    assert accumulated is not None
    assert accumulated > 8 * whole
    with pytest.raises(SeqplanError, match="gradient accumulation makes any batch possible"):
        find_limits(asked, "global_batch_size", Pins(micro_batch_size=1))


def test_a_pinned_axis_belongs_to_every_family() -> None:
    limits = find_limits(small(), "seq_len", Pins(pp=2), ("tp", "sp"), (1, 4)).limits
    assert [limit.layout.degrees_text for limit in limits if limit.layout] == [
        "dp1,pp2,tp2,sp1",
        "dp1,pp2,tp1,sp2",
    ]
    assert all("does not divide the 1 GPUs" in limit.why_not for limit in limits if limit.value is None)


def test_what_does_not_fit_says_by_how_much() -> None:
    asked = question(decoder(), 1, where=cluster(memory_gib=16), implementation=our_trainer())
    (limit,) = find_limits(asked, "global_batch_size", Pins(), ("all",), (1,)).limits
    assert limit.value is None
    assert "dp1,pp1,tp1,sp1: stage 0 needs" in limit.why_not
    assert "GiB too much" in limit.why_not
    (odd,) = find_limits(small(seq_len=1025), "global_batch_size", Pins(), ("sp",), (4,)).limits
    assert "nearest legal lengths are 1024 and 1032" in odd.why_not
    (split,) = find_limits(small(global_batch_size=3), "seq_len", Pins(pp=4), ("tp",), (4,)).limits
    assert split.why_not == "global_batch_size=3 has no 4 or more equal micro-batches for pp=4."


def test_families_and_devices() -> None:
    assert device_counts(small(), ("tp",)) == (1, 2, 4)
    nodes = question(decoder(num_attention_heads=24, num_kv_heads=24, hidden_size=3072), 32)
    assert device_counts(nodes, ("tp",)) == (1, 2, 3, 4, 6, 8, 16, 24, 32)  # 12 is not a whole node
    with pytest.raises(SeqplanError, match="unknown family ring"):
        find_limits(small(), "seq_len", Pins(), ("ring",))
    with pytest.raises(SeqplanError, match="no whole number of the 8-GPU nodes"):
        find_limits(nodes, "seq_len", Pins(), ("all",), (12,))


def test_the_best_of_a_family_against_tp() -> None:
    limits = published("bert-large", "global_batch_size", 1, 0.0)
    by_family = {best.family: best for best in limits.best}
    assert (by_family["tp"].gpus, by_family["tp"].times_tp) == (16, 1.0)
    assert by_family["sp"].times_tp == by_family["sp"].value / by_family["tp"].value


# The smallest cluster


def test_the_smallest_cluster_of_70b() -> None:
    """Megatron-LLM#52: 32 A100-80, where nothing is sharded; ZeRO-3 needs fewer."""
    asked = Question(
        model=profiles.load_model("llama2-70b")[0],
        cluster=profiles.load_cluster("dgx-a100").for_gpus(64),
        gpus=64,
        train=TrainSpec(seq_len=4096, global_batch_size=64, headroom_fraction=0.05),
        implementation=our_trainer(),
    )
    counts = (8, 16, 32, 64)
    (replicated,) = fewest_devices(asked, Pins(zero_stage=0), ("all",), counts).smallest
    assert replicated.gpus == 32
    (sharded,) = fewest_devices(asked, Pins(), ("all",), counts).smallest
    assert sharded.gpus == 16
    assert sharded.layout is not None
    assert sharded.layout.zero_stage == 3
    (alone,) = fewest_devices(asked, Pins(), ("tp",), counts).smallest
    assert alone.gpus is None
