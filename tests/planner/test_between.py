"""Fewer devices than a power of two: what is tried between, and what is said of it."""

from __future__ import annotations

import re

import pytest

from seqplan.planner.choosing.between import STEPS, fewest_between
from seqplan.planner.choosing.fewest_devices import fewest_devices
from seqplan.planner.question import Pins, Question
from seqplan.planner.search import suggest
from tests.planner.formula_cases import our_trainer
from tests.planner.samples import cluster, decoder, question


def large(gpus: int) -> Question:
    """Llama 3 70B (arXiv 2407.21783, table 3): 16 bytes x 70.6e9 are 14.1 devices of 80 GB by themselves."""
    sizes = {"num_layers": 80, "hidden_size": 8192, "ffn_hidden_size": 28672, "num_attention_heads": 64}
    return question(decoder(name="llama-70b", **sizes), gpus, seq_len=8192, implementation=our_trainer())


@pytest.mark.parametrize(
    ("least", "found", "tried"),
    [
        (96, 96, [96, 80, 88]),  # 8 and 16 nodes of 8: 12, then 10, then 11
        (72, 72, [96, 80, 72]),
        (121, 128, [96, 112, 120]),
    ],
)
def test_whole_nodes_are_bisected(least: int, found: int, tried: list[int]) -> None:
    asked: list[int] = []

    def at(gpus: int) -> str | None:
        asked.append(gpus)
        return f"on {gpus}" if gpus >= least else None

    answer = fewest_between(cluster(), 64, 128, "on 128", at)
    assert asked == tried
    assert (answer.gpus, answer.found) == (found, f"on {found}")
    assert answer.too_few == (64, *(gpus for gpus in tried if gpus < least))


def test_inside_a_node_there_are_single_devices_and_of_thousands_few_are_tried() -> None:
    assert fewest_between(cluster(), 4, 8, "8", lambda gpus: "5" if gpus >= 5 else None).gpus == 5
    asked: list[int] = []
    fewest_between(cluster(), 8192, 16384, "16384", asked.append)
    assert len(asked) == STEPS
    assert asked[0] == 12288


def test_suggest_names_fewer_than_a_power_of_two_and_what_was_not_enough() -> None:
    """What the line says is asked again, number by number."""
    (line,) = [line for line in suggest(large(8)).would_fit if " GPUs (" in line]
    said = re.match(r"(\d+) GPUs \((\d+) nodes; not on ([\d or,]+)\): ", line)
    assert said is not None, line
    gpus, nodes = int(said[1]), int(said[2])
    too_few = [int(number) for number in re.findall(r"\d+", said[3])]
    assert gpus == 8 * nodes == too_few[-1] + 8
    assert suggest(large(gpus), top=1).pick is not None
    assert all(suggest(large(count), top=1).fitting == 0 for count in too_few)


def test_part_of_a_node_grows_into_the_node() -> None:
    whole = cluster()
    small = question(decoder(), 1, where=whole.for_gpus(1), seq_len=8192, implementation=our_trainer())
    assert small.cluster.gpus_per_node == 1
    (line,) = [
        line
        for line in suggest(small.model_copy(update={"full_cluster": whole})).would_fit
        if " GPUs (" in line
    ]
    assert "(1 node; not on 1)" in line


def test_the_smallest_cluster_is_looked_for_between_too() -> None:
    (found,) = fewest_devices(large(64), Pins(), ("all",)).smallest
    (named,) = fewest_devices(large(64), Pins(), ("all",), (8, 16, 32, 64)).smallest
    assert named.gpus is not None
    assert found.gpus is not None
    assert found.gpus <= named.gpus
    assert named.gpus in (8, 16, 32, 64), "the user's own numbers and no others"
    assert found.too_few[-1] == found.gpus - 8
    (below,) = fewest_devices(large(64), Pins(), ("all",), (found.gpus - 8,)).smallest
    assert below.gpus is None
