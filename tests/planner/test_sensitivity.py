"""Sensitivity: a rate that decides between the first two is named, one that decides nothing is not."""

from __future__ import annotations

import pytest

from seqplan.planner.choosing.sensitivity import LEAST_GAIN, sensitivity
from seqplan.planner.cluster_spec import ClusterSpec
from seqplan.planner.question import Pins, Question
from seqplan.planner.search import score, suggest
from tests.planner.formula_cases import our_trainer
from tests.planner.samples import cluster, decoder, number, question


def asked_of(where: ClusterSpec, gpus: int = 16) -> Question:
    return question(decoder(num_layers=8), gpus, where=where, implementation=our_trainer())


def test_a_lone_leader_is_stable_and_the_rates_are_named() -> None:
    asked = asked_of(cluster())
    best = suggest(asked, top=1).ranked[0].layout
    found = sensitivity(asked, [best])
    assert (found.verdict, found.changes) == ("stable", ())
    assert found.text == (
        "stable: the pick stays first with the links inside nodes, the links between nodes or the devices' "
        "matmuls 20 % lower or higher"
    )
    alone = sensitivity(asked_of(cluster(gpus_per_node=1)), [best])
    assert "inside nodes" not in alone.text
    one_node = asked_of(cluster(), 8)
    assert "between nodes" not in sensitivity(one_node, [suggest(one_node, top=1).ranked[0].layout]).text


@pytest.mark.parametrize("slower", [True, False], ids=["slower links", "faster links"])
def test_a_change_of_the_links_that_turns_two_layouts_is_told(slower: bool) -> None:
    """The link's rate is set to where a layout that talks between nodes ties with one that does not."""
    fast = cluster()
    asked = asked_of(fast)
    wide = suggest(asked, Pins(dp=16, micro_batch_size=1, zero_stage=3, recompute="none")).ranked
    local = suggest(asked, Pins(dp=2, tp=8, pp=1, sp=1, micro_batch_size=4)).ranked
    assert wide
    assert local

    def at(rate: float) -> Question:
        link = fast.inter_node.model_copy(update={"bytes_per_s": number(rate)})
        return asked_of(fast.model_copy(update={"inter_node": link}))

    def gap(rate: float) -> float:
        first, second = score(at(rate), wide[0].layout).time, score(at(rate), local[0].layout).time
        assert first is not None
        assert second is not None
        return first.step_time_s - second.step_time_s

    low, high = 1e8, 1e12
    assert gap(low) > 0 > gap(high)
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if gap(middle) > 0 else (low, middle)
    pair = [wide[0].layout, local[0].layout] if slower else [local[0].layout, wide[0].layout]
    tie = at(high if slower else low)
    found = sensitivity(tie, pair)
    assert found.verdict == "close call"
    links = [change for change in found.changes if change.rate == "links between nodes"]
    assert [(change.factor, change.layout) for change in links] == [(0.8 if slower else 1.2, pair[1])]
    assert links[0].gain_fraction >= LEAST_GAIN
    way = "lower" if slower else "higher"
    told = f"with the links between nodes 20 % {way}, {pair[1].degrees_text} is "
    assert f"{told}{100 * links[0].gain_fraction:.1f} % faster" in found.text


def test_a_rival_of_the_same_degrees_is_told_by_flags_that_can_be_typed() -> None:
    asked = asked_of(cluster())
    rival = suggest(asked, top=1).ranked[0].layout
    pick = rival.model_copy(update={"micro_batch_size": 1, "recompute": "full", "zero_stage": 3})
    rival = rival.model_copy(update={"micro_batch_size": 2, "recompute": "none", "zero_stage": 2})
    found = sensitivity(asked, [pick, rival], [10.0, 1.0])
    assert found.verdict == "close call"
    assert "the same with --micro-batch-size 2 --recompute none --zero-stage 2 is " in found.text
