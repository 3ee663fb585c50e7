"""calibrate on real ranks: tiny sizes, a second of measuring; what it finds can be planned for."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from seqplan import profiles
from seqplan.planner.calibration.cluster_profile import profile_of, profile_text
from seqplan.planner.calibration.samples import Measurements
from seqplan.planner.errors import FailedError, SeqplanError
from seqplan.profiles.cluster_file import cluster_from
from seqplan.runtime.calibrate import measure, measure_rank
from seqplan.runtime.calibration.calibrate_compute import _block, _linear
from seqplan.runtime.calibration.calibrate_ranks import run_on_ranks
from seqplan.runtime.calibration.calibrate_sizes import SIZES, Sizes
from seqplan.runtime.calibration.calibrate_timing import (
    LEAST_ROUNDS,
    LONGEST_WINDOW_S,
    SHORTEST_WINDOW_S,
    Task,
    time_all,
    time_within,
    window_within,
)
from tests.ranks import run_ranks

TINY = Sizes(
    matmuls=((32, 32, 32), (64, 32, 32), (64, 64, 64), (128, 64, 64)),
    attention=((32, 1, 16), (64, 1, 16), (128, 1, 16), (32, 1, 32)),
    copy_bytes=(1 << 16,),
    between_tokens=(32,),
    between_hidden=64,
    transfer_bytes=(1 << 10, 1 << 14),
    work_between=(16, 16, 16),
    rounds=2,
)
RANKS = 2
LIMIT_S = 60.0


def nothing(what: str, share: float) -> None:
    """Nobody watches."""


@pytest.mark.ranks
def test_a_short_calibration_is_a_cluster_to_plan_for(tmp_path: Path) -> None:
    said: list[tuple[str, float]] = []
    measured = measure(RANKS, "cpu", 1.0, lambda what, share: said.append((what, share)), TINY)
    assert measured is not None
    assert (measured.ranks_per_node, measured.nodes, measured.device_kind) == (RANKS, 1, "cpu")
    assert measured.repeats == TINY.rounds
    assert measured.cores_per_node is not None
    assert measured.cores_per_node <= (os.cpu_count() or 1)
    dtypes = set(measured.kernels)
    assert "fp32" in dtypes
    assert len(measured.matmuls) == len(TINY.matmuls) * len(dtypes)
    assert len(measured.attention) == len(TINY.attention) * len(dtypes)
    assert {each.kind for each in measured.transfers} == {
        *("all_reduce", "all_gather", "reduce_scatter", "neighbour")
    }
    assert all(each.ranks == RANKS and not each.leaves_node for each in measured.transfers)
    shares = [share for _, share in said]
    assert shares == sorted(shares)
    assert shares[-1] < 1.0
    path = tmp_path / "lab.yaml"
    path.write_text(profile_text(profile_of(measured, "lab"), measured), encoding="utf-8")
    assert profiles.load_cluster(path) == cluster_from(profile_of(measured, "lab"), "lab")


def broken(device: object, report: object, rank_that_fails: int) -> None:
    import torch.distributed as dist

    if dist.get_rank() == rank_that_fails:
        raise ValueError("nothing to measure here\nand more")
    dist.barrier()


@pytest.mark.ranks
def test_a_rank_that_fails_ends_the_measurement() -> None:
    with pytest.raises(
        FailedError, match=r"Rank 1 of 2 could not measure: ValueError: nothing to measure here$"
    ):
        run_on_ranks(RANKS, "cpu", broken, (1,), nothing, LIMIT_S)


def counted(device: object, report: object) -> list[int]:
    """How often a collective is called by each rank, whatever its own clock says."""
    import time

    import torch
    import torch.distributed as dist

    calls = [0]

    def slow_on_one_rank() -> None:
        calls[0] += 1
        time.sleep(0.002 * dist.get_rank())
        dist.barrier()

    task = Task("uneven", slow_on_one_rank, together=True)
    time_all([task], torch.device("cpu"), 0.02, 3, None)
    told: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(told, calls[0])
    assert len(task.means_s) == 3
    return told


@pytest.mark.ranks
def test_every_rank_calls_a_collective_equally_often() -> None:
    first, second = run_on_ranks(RANKS, "cpu", counted, (), nothing, LIMIT_S)
    assert first == second > 3


def with_work(device: object, report: object) -> tuple[int, float, float]:
    """How often the work was done alone, and a barrier after it: the work taken off, and not."""
    import time

    import torch
    import torch.distributed as dist

    alone = [0]

    def work() -> None:
        alone[0] += 1
        time.sleep(0.01)

    def work_and_barrier() -> None:
        time.sleep(0.01)
        dist.barrier()

    taken_off = Task("taken off", work_and_barrier, together=True, beside=work)
    left = Task("left", work_and_barrier, together=True)
    time_all([taken_off, left], torch.device("cpu"), 0.1, 3, None)
    return alone[0], taken_off.seconds, left.seconds


@pytest.mark.ranks
def test_work_beside_a_collective_is_taken_off() -> None:
    alone, taken_off, left = run_on_ranks(RANKS, "cpu", with_work, (), nothing, LIMIT_S)
    assert alone > 3
    assert taken_off < 0.6 * left


@pytest.mark.parametrize(
    ("seconds", "costs_s", "window_s"),
    [
        (1.0, [0.0] * 10, 0.1),
        (1.0, [0.5, 0.0, 0.0, 0.0, 0.0], 0.125),  # a call of half a second leaves half for the four others
        (1.0, [0.125, 0.0, 0.0, 0.0], 0.25),
        (0.1, [0.5, 0.0], SHORTEST_WINDOW_S),
        (-1.0, [0.0], SHORTEST_WINDOW_S),
        (100.0, [0.0, 1.0], LONGEST_WINDOW_S),
    ],
)
def test_long_calls_come_off_the_windows_of_the_others(
    seconds: float, costs_s: list[float], window_s: float
) -> None:
    assert window_within(seconds, costs_s) == pytest.approx(window_s, rel=0.002)


def within_seconds(device: object, report: object) -> tuple[list[int], list[int]]:
    """Rounds made without any time and with plenty, and how often each rank called a collective."""
    import torch
    import torch.distributed as dist

    calls = [0]

    def barrier() -> None:
        calls[0] += 1
        dist.barrier()

    made = []
    for seconds in (0.0, 1000.0):
        task = Task("barrier", barrier, together=True)
        time_within([task, Task("nothing", list)], torch.device("cpu"), seconds, LEAST_ROUNDS + 1, None)
        made.append(len(task.means_s))
    told: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(told, calls[0])
    return made, told


@pytest.mark.ranks
def test_without_time_there_are_fewer_rounds() -> None:
    made, (first, second) = run_on_ranks(RANKS, "cpu", within_seconds, (), nothing, LIMIT_S)
    assert made == [LEAST_ROUNDS, LEAST_ROUNDS + 1]
    assert first == second


@pytest.mark.parametrize("backward", [False, True])
def test_every_call_has_operands_of_its_own(backward: bool) -> None:
    """Equal ones in other memory, which no cache holds."""
    import torch

    cpu, fp32 = torch.device("cpu"), torch.float32
    for make in (_linear(8, 4, 16, fp32, cpu), _block((1, 2, 8, 16), fp32, cpu, "math", backward)):
        first, second = make(), make()
        assert isinstance(first, partial)
        assert isinstance(second, partial)
        pairs = [(a, b) for a, b in zip(first.args, second.args, strict=True) if isinstance(a, torch.Tensor)]
        assert len(pairs) >= 2
        for ours, theirs in pairs:
            assert torch.equal(ours, theirs)
            assert ours.data_ptr() != theirs.data_ptr()
            assert ours.stride() == theirs.stride()
        first()


def interrupted(device: object, report: object) -> str:
    """Ctrl-C in a terminal reaches the ranks too."""
    os.kill(os.getpid(), signal.SIGINT)
    return "went on"


@pytest.mark.ranks
def test_an_interrupt_is_left_to_the_process_that_started_the_ranks() -> None:
    """Else each rank prints a traceback before that one ends them."""
    assert run_on_ranks(RANKS, "cpu", interrupted, (), nothing, LIMIT_S) == "went on"


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(SeqplanError, match="--nproc 0 must be from 1 to 256 ranks"):
        measure(0, "cpu", 1.0, nothing)


def as_two_nodes(rank: int, world_size: int) -> Measurements:
    import torch

    return measure_rank(torch.device("cpu"), None, 1, 0.1, replace(TINY, rounds=1))


@pytest.mark.ranks
def test_what_moves_between_nodes_is_told_apart() -> None:
    """Two ranks, each said to be alone on its node."""
    first, second = run_ranks(RANKS, as_two_nodes, timeout_s=LIMIT_S)
    assert (first.nodes, first.ranks_per_node) == (2, 1)
    assert {each.leaves_node for each in first.transfers} == {True}
    assert first.transfers == second.transfers  # every rank has the median over all
    link = profile_of(first, "two nodes")["inter_node"]
    assert link["latency_s"]["source"].startswith("measured by seqplan calibrate on 20")


def test_the_sizes_of_a_gpu_fill_it_and_those_of_a_core_do_not_take_long() -> None:
    """A GPU needs matmuls beyond 4096 for its full rate; a core of 10 GFLOP/s must do any within a second."""
    assert max(m * n * k for m, n, k in SIZES["cuda"].matmuls) >= 4096**3
    assert 2 * max(m * n * k for m, n, k in SIZES["cpu"].matmuls) < 10e9
