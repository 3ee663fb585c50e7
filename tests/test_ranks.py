"""The multi-rank harness itself: results by rank, and that no fault hangs."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from tests.ranks import RanksFailedError, run_ranks

pytestmark = pytest.mark.ranks


def _sum_of_ranks(rank: int, world_size: int, offset: int) -> tuple[int, torch.Tensor]:
    total = torch.tensor([rank + offset], dtype=torch.float64)
    dist.all_reduce(total)
    return world_size, total


def _rank_one_raises(rank: int, world_size: int) -> None:
    if rank == 1:
        raise ValueError("seventeen")
    dist.barrier()


def _rank_one_dies(rank: int, world_size: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def _everybody_receives(rank: int, world_size: int) -> None:
    dist.recv(torch.empty(4), src=(rank + 1) % world_size)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_results_come_back_by_rank(world_size: int) -> None:
    results = run_ranks(world_size, _sum_of_ranks, 10)
    expected = sum(range(10, 10 + world_size))
    assert [size for size, _ in results] == [world_size] * world_size
    assert [total.item() for _, total in results] == [expected] * world_size


def test_a_rank_that_raises_fails_the_call_with_its_traceback() -> None:
    with pytest.raises(RanksFailedError, match=r"(?s)rank 1: Traceback.*ValueError: seventeen"):
        run_ranks(2, _rank_one_raises)


def test_a_rank_that_dies_fails_at_once() -> None:
    started = time.monotonic()
    with pytest.raises(RanksFailedError, match="rank 1: died with exit code -9"):
        run_ranks(2, _rank_one_dies, timeout_s=60)
    assert time.monotonic() - started < 20


def test_a_deadlock_fails_and_leaves_nothing_running() -> None:
    with pytest.raises(RanksFailedError, match=r"did not finish in 2.0 s|Timed out"):
        run_ranks(2, _everybody_receives, timeout_s=2.0)
