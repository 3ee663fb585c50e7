"""What people ran into in public with links, boxes and placement, asked of ours.

Every test names the thread (repository#number) that it comes from; rows without one are of the same kind.
Seconds are computed by hand from the links' published rates and the profile's efficiency (alpha-beta).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seqplan import profiles
from seqplan.planner.choosing.notes import layout_warnings
from seqplan.planner.choosing.placement import placement_lines, placements, ring_condition
from seqplan.planner.cluster_spec import ClusterSpec
from seqplan.planner.errors import SeqplanError
from seqplan.planner.plan import make_plan
from seqplan.planner.question import Pins, Question
from seqplan.planner.results import Suggestion, TimeEstimate
from seqplan.planner.search import score, suggest
from tests.planner.memory_reports import ask
from tests.planner.samples import layout

BY_HAND = 0.02
"""A sum of alpha-beta terms against ours, which also counts the embedding's and the head's messages."""


def built(tmp_path: Path, text: str) -> ClusterSpec:
    """A cluster as a user writes it."""
    path = tmp_path / "cluster.yaml"
    path.write_text(text, encoding="utf-8")
    return profiles.load_cluster(path)


def timed(asked: Question, **fields: Any) -> TimeEstimate:
    found = score(asked, layout(asked, **fields)).time
    assert found is not None
    return found


def lines(asked: Question, **fields: Any) -> str:
    chosen = layout(asked, **fields)
    return "\n".join(placement_lines(asked, chosen, score(asked, chosen).time))


def half_warning(answer: Suggestion) -> str:
    return " ".join(text for text in answer.warnings if "times as many devices" in text)


# PCIe boxes without NVLink


def test_two_cards_on_pcie_are_hardly_faster_than_one() -> None:
    """sd-scripts#1434: 2 H100 PCIe, the batch of each card kept: 1.27 -> 2.07 s, x1.23 and not x2."""
    one = suggest(ask("llama3.2-1b", "h100-pcie-8", 1, seq_len=1024, batch=2))
    two = suggest(ask("llama3.2-1b", "h100-pcie-8", 2, seq_len=1024, batch=4))
    assert one.pick is not None
    assert one.pick.time is not None
    assert two.pick is not None
    assert two.pick.time is not None
    gain = 2 * one.pick.time.step_time_s / two.pick.time.step_time_s
    assert 1.0 < gain < 1.7
    assert "2 times as many devices make it x1." in half_warning(two)
    # With NVLink it is another matter, and there is nothing to warn of.
    assert half_warning(suggest(ask("llama3.2-1b", "dgx-h100", 2, seq_len=8192, batch=16))) == ""


def test_a_reduction_over_pcie_by_hand() -> None:
    """The same: fp32 gradients of 1.24 B weights over 2 cards at 0.65 x 63 GB/s, behind one backward."""
    asked = ask("llama3.2-1b", "h100-pcie-8", 2, seq_len=1024, batch=4)
    step = timed(asked, dp=2, micro_batch_size=2, zero_stage=0)
    weights = 1_235_814_400
    reduction_s = 2 * (1 / 2) * 4 * weights / (0.65 * 63e9)
    assert step.by_kind["dp"] < reduction_s
    assert step.by_kind["dp"] + step.by_kind["compute"] > reduction_s


def test_tp_on_pcie_eats_what_it_saves() -> None:
    """L20, 4090 and the like: 8 ranks all-reduce the residual four times a layer over PCIe."""
    asked = ask("llama2-7b", "l20-8", 8, seq_len=4096, batch=32)
    step = timed(asked, tp=8, zero_stage=0)
    # 32 micro-batches x 32 layers x 4 all-reduces of 4096 x 4096 bf16: 2 x 7/8 of it at 0.65 x 31.5 GB/s,
    # and 6 steps of the trees at 10 us.
    one_s = 2 * 7 / 8 * 4096 * 4096 * 2 / (0.65 * 31.5e9) + 6 * 10e-6
    assert step.by_kind["tp"] == pytest.approx(32 * 32 * 4 * one_s, rel=BY_HAND)
    assert step.by_kind["tp"] > step.by_kind["compute"] / 2
    answer = suggest(asked)
    assert answer.pick is not None
    assert answer.pick.layout.tp <= 2
    assert "pcie4x16" in lines(asked, tp=8)


def test_on_pcie_bandwidth_decides_between_ring_and_heads() -> None:
    """long-context-attention#73: on 8 L20 heads split 4-fold x a ring of 2 was best."""
    asked = ask("llama2-7b", "l20-8", 8, seq_len=16384, batch=8)
    common = {"sp": 8, "zero_stage": 3, "recompute": "full"}
    ring = timed(asked, **common)
    mixed = timed(asked, **common, ulysses_degree=4)
    assert mixed.step_time_s < ring.step_time_s
    assert ring.by_kind["sp"] > 0.25 * ring.step_time_s
    assert "hops are waited for" in lines(asked, **common)
    # On NVLink the same ring is all but free.
    fast = ask("llama2-7b", "dgx-h100", 8, seq_len=16384, batch=8)
    share = timed(fast, **common)
    assert share.by_kind["sp"] < 0.1 * share.step_time_s


# When a ring's hop is hidden


@pytest.mark.parametrize(
    ("model", "where", "gpus", "degrees"),
    [
        ("llama2-7b", "l20-8", 8, {"sp": 8}),
        ("llama3-8b", "dgx-h100", 16, {"sp": 16}),
        ("llama3-70b", "dgx-a100", 32, {"sp": 4, "tp": 8}),  # one ring a port
        ("bert-base", "dgx-h100", 16, {"sp": 16}),  # both ways
    ],
)
def test_the_length_from_which_a_hop_is_hidden(
    model: str, where: str, gpus: int, degrees: dict[str, int]
) -> None:
    """The length that is told is the one at which the time model stops to wait."""
    sp = degrees["sp"]
    asked = ask(model, where, gpus, seq_len=sp * 1024, batch=1)
    told = ring_condition(asked, layout(asked, **degrees))
    assert told is not None
    assert told.hides_from is not None
    below, above = (round(told.hides_from * share / 2) * 2 for share in (0.8, 1.1))
    waits = [
        timed(ask(model, where, gpus, seq_len=sp * tokens, batch=1), **degrees).by_kind["sp"] / tokens
        for tokens in (below, above)
    ]
    # Beyond it only the last gradients' hop is left, whose share falls; below it every hop is waited for.
    assert waits[0] > 1.05 * waits[1]
    far = timed(ask(model, where, gpus, seq_len=sp * 4 * above, batch=1), **degrees)
    assert far.by_kind["sp"] / (4 * above) == pytest.approx(waits[1], rel=0.1)


def test_a_window_bounds_what_a_block_can_hide() -> None:
    """Mistral's window of 4096: a rank's blocks are done before the next has come over the network."""
    asked = ask("mistral-7b", "dgx-h100", 16, seq_len=65536, batch=1)
    told = ring_condition(asked, layout(asked, sp=16))
    assert told is not None
    assert told.hides_from is None
    assert "at no length" in told.text


# Placement


def test_which_axis_crosses_is_in_the_plan(tmp_path: Path) -> None:
    """torchtitan#1681: pp 2 x dp 2 x tp 4 on 4 nodes of 4 GPUs."""
    nodes = built(tmp_path, "base: dgx-a100\ngpus_per_node: 4\nnum_nodes: 4\nnics_per_node: 4\n")
    asked = ask("llama3-8b", nodes, 16, seq_len=4096, batch=16)
    scored = score(asked, layout(asked, pp=2, dp=2, tp=4))
    notes = "\n".join(make_plan(asked, scored).estimate.time.notes)
    assert "tp=4: inside a node, 270 GB/s a rank" in notes
    assert "pp=2: over 2 nodes, 1 rank of it on each; 4 transfers leave a node at once" in notes
    assert "gradients over dp x sp=2: over 2 nodes" in notes


def test_tp_over_two_nodes_is_not_preferred() -> None:
    """sglang#3172: tp 16 on 2 nodes of 8."""
    asked = ask("llama2-7b", "dgx-h100", 16, seq_len=4096, batch=16)
    wide, narrow = timed(asked, tp=16), timed(asked, tp=8, dp=2)
    assert wide.step_time_s > 1.3 * narrow.step_time_s
    # 16 micro-batches x 32 layers x 4 all-reduces of 32 MiB: 2 x 15/16 of it at 8 x 42 GB/s, and 8 steps.
    one_s = 2 * 15 / 16 * 4096 * 4096 * 2 / (8 * 0.84 * 50e9) + 8 * 4.7e-6
    assert wide.by_kind["tp"] == pytest.approx(16 * 32 * 4 * one_s, rel=BY_HAND)
    assert any("tp=16 spans nodes of 8" in text for text in layout_warnings(asked, layout(asked, tp=16)))
    answer = suggest(asked)
    assert answer.pick is not None
    assert answer.pick.layout.tp <= 8


def test_a_bad_order_is_told_with_the_good_one() -> None:
    """tp outermost: its ranks lie on 4 nodes; the usual order would keep it inside one."""
    asked = ask("llama3-8b", "dgx-h100", 32, seq_len=4096, batch=64)
    bad: dict[str, Any] = {"mesh_order": ["tp", "pp", "sp", "dp"]}
    usual: dict[str, Any] = {}
    degrees: dict[str, Any] = {"tp": 8, "dp": 4}
    assert timed(asked, **degrees, **bad).step_time_s > 1.3 * timed(asked, **degrees, **usual).step_time_s
    (text,) = [t for t in layout_warnings(asked, layout(asked, **degrees, **bad)) if "spans nodes" in t]
    assert "In the order pp,dp,sp,tp it would stay inside a node" in text
    assert not [t for t in layout_warnings(asked, layout(asked, **degrees, **usual)) if "spans" in t]


def test_a_short_ring_over_nodes_is_not_told_to_be_inexact() -> None:
    """ring-flash-attention#42 is about rings of 16 and more; 405B was trained with rings of 4 to 8 nodes."""
    asked = ask("llama3-70b", "dgx-h100", 32, seq_len=131072, batch=4)
    (text,) = [t for t in layout_warnings(asked, layout(asked, sp=4, tp=8)) if "sp=4" in t]
    assert "bandwidth" in text
    assert "accuracy" not in text


# Ports that groups share


@pytest.mark.parametrize(
    ("ports", "bytes_per_s"),
    [(8, 0.63 * 25e9), (4, 0.63 * 25e9 / 2), (1, 0.63 * 25e9 / 8)],
)
def test_one_port_for_eight_gpus(tmp_path: Path, ports: int, bytes_per_s: float) -> None:
    """dp over 4 nodes with tp 8 inside: 8 groups share a node's ports (0.63 of HDR's 25 GB/s)."""
    nodes = built(tmp_path, f"base: dgx-a100\nnum_nodes: 4\nnics_per_node: {ports}\n")
    asked = ask("llama2-7b", nodes, 32, seq_len=4096, batch=64)
    (dp,) = [each for each in placements(asked, layout(asked, tp=8, dp=4)) if each.axis == "dp"]
    assert (dp.nodes, dp.sharing) == (4, 8)
    assert dp.bytes_per_s == pytest.approx(bytes_per_s)
    # fp32 gradients of the 843 M weights of a rank, 2 x 3/4 of them; the last backward hides at most itself.
    step = timed(asked, tp=8, dp=4, zero_stage=0)
    reduction_s = 2 * 3 / 4 * 4 * 6.746e9 / 8 / bytes_per_s
    last_backward_s = step.by_kind["compute"] / 16
    assert reduction_s - last_backward_s < step.by_kind["dp"] < reduction_s * (1 + BY_HAND)


def test_a_reduction_over_slow_ethernet_is_avoided(tmp_path: Path) -> None:
    """Two boxes of 8 on 10 Gb Ethernet: stages over the boxes, and the second box brings next to nothing."""
    boxes = built(tmp_path, "base: dgx-a100\nnum_nodes: 2\ninter_node: ethernet-10g\nnics_per_node: 1\n")
    asked = ask("llama2-7b", boxes, 16, seq_len=4096, batch=64)
    answer = suggest(asked)
    assert answer.pick is not None
    assert answer.pick.layout.pp == 2
    assert "x1." in half_warning(answer)
    # dp over the boxes: 27 GB of gradients, 2 x 15/16 of them at 1 GB/s.
    plain = timed(asked, dp=16, zero_stage=0)
    assert plain.by_kind["dp"] == pytest.approx(2 * 15 / 16 * 27.0, rel=0.05)


def test_one_gpu_nodes_wait_for_every_hop(tmp_path: Path) -> None:
    """8 nodes of one GPU on 100 Gb Ethernet: nothing is inside a node."""
    nodes = built(
        tmp_path,
        "base: dgx-a100\ngpus_per_node: 1\nnum_nodes: 8\ninter_node: ethernet-100g\nnics_per_node: 1\n",
    )
    asked = ask("llama3-8b", nodes, 8, seq_len=65536, batch=8)
    text = lines(asked, sp=8, zero_stage=3)
    assert (
        "sp=8: over 8 nodes, 1 rank of it on each; 1 ring hop leaves a node at once through its 1 port"
        in text
    )
    assert "8.75 GB/s each" in text  # 0.7 of 12.5
    assert "hops are waited for" in text


@pytest.mark.parametrize(
    ("per_node", "gpus", "degrees", "nodes", "sharing"),
    [
        (3, 12, {"tp": 2, "dp": 6}, 2, 1),  # ranks 2 and 3 are on two nodes, and no other pair of theirs is
        (6, 12, {"tp": 4, "dp": 3}, 2, 1),
        (6, 24, {"tp": 8, "dp": 3}, 2, 2),  # a node holds the end of one group and the start of another
        (6, 24, {"tp": 3, "dp": 8}, 1, 1),  # 96 heads of a 175B model on nodes of 6: metaseq#209
    ],
)
def test_groups_that_do_not_divide_a_node(
    tmp_path: Path, per_node: int, gpus: int, degrees: dict[str, int], nodes: int, sharing: int
) -> None:
    where = built(tmp_path, f"base: dgx-a100\ngpus_per_node: {per_node}\nnum_nodes: 4\nnics_per_node: 1\n")
    asked = ask("gpt3-175b", where, gpus, seq_len=2048, batch=96)
    (tp,) = [each for each in placements(asked, layout(asked, **degrees)) if each.axis == "tp"]
    assert (tp.nodes, tp.sharing) == (nodes, sharing)
    port = 0.63 * 25e9 / sharing
    assert tp.bytes_per_s == pytest.approx(port if nodes > 1 else 0.9 * 300e9)


def test_12_gpus_of_nodes_of_8() -> None:
    with pytest.raises(SeqplanError) as caught:
        profiles.load_cluster("dgx-h100").for_gpus(12)
    assert "use 8 or 16, or at most 8 on one node" in caught.value.hint


def test_the_nearest_degree_is_given_with_a_layout() -> None:
    """DeepSpeed#3634: not only which tp would be legal, but what it gives."""
    answer = suggest(ask("llama-33b", "dgx-h100", 8, seq_len=4096, batch=64), Pins(tp=8))
    (near,) = [text for text in answer.would_fit if text.startswith("With --tp 4")]
    assert "the nearest to --tp 8 that works: dp2,pp1,tp4,sp1" in near


@pytest.mark.parametrize(
    ("where", "hop", "collective"),
    [
        ("mi300x-8", 0.7 * 64e9, 0.7 * 448e9),  # one of seven links joins a pair
        ("v100-4gpu", 0.8 * 50e9, 0.8 * 150e9),  # two of six
        ("dgx-h100", 0.77 * 450e9, 0.77 * 450e9),  # a switch
    ],
)
def test_without_a_switch_a_hop_has_one_pairs_links(where: str, hop: float, collective: float) -> None:
    asked = ask("bert-base", where, 4, seq_len=512, batch=8, precision="fp16")
    found = {each.axis: each.bytes_per_s for each in placements(asked, layout(asked, sp=2, tp=2))}
    assert found["sp"] == pytest.approx(hop, rel=0.01)
    assert found["tp"] == pytest.approx(collective)
