"""Runs a function on several gloo ranks of this machine, quickly and without ever hanging.

Importing torch costs seconds and forking a process that has run torch's thread pools hangs, so ranks are
forked from a fork server that has imported torch and run nothing (multiprocessing's "forkserver" with a
preload list): a warm call with 4 ranks takes well under a second. The caller's process never starts a
process group. A rank that raises, dies or does not finish fails the call with what it said; the other
ranks are ended. Functions travel by name, so they must stand at the top level of a module.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

T = TypeVar("T")

PRELOAD = [
    "torch",
    "torch.distributed",
    "torch.distributed.device_mesh",
    "torch.distributed.tensor",
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "torch.utils.checkpoint",
    "torch.utils.flop_counter",
    "torch._dynamo",
    "pydantic",
    "numpy",
    "pytest",
]
"""Imported once by the fork server; each costs every rank of every test otherwise."""

GRACE_S = 0.5
"""After the first failure: how long other ranks may still say what they saw before they are ended."""


class RanksFailedError(AssertionError):
    """One or more ranks raised, died or ran out of time; the text holds what each of them said."""


def run_ranks(world_size: int, fn: Callable[..., T], *args: Any, timeout_s: float = 60.0) -> list[T]:
    """`fn(rank, world_size, *args)` on every rank of a gloo process group; the results, by rank.

    `fn` is a function at the top level of a module; arguments and results are pickled (tensors are copied).
    Several checks in one call are cheaper than several calls. After `timeout_s` the ranks are killed and
    RanksFailedError is raised; the same limit holds for every collective.
    """
    payload = pickle.dumps((fn, args))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    # One core a rank, also for what the fork server inherits: libgomp reads this when torch is loaded.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folder = tempfile.mkdtemp(prefix="seqplan-ranks-")
    processes: list[BaseProcess] = []
    pipes: list[Connection] = []
    try:
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            process: BaseProcess = context.Process(
                target=_rank_main, args=(rank, world_size, folder, timeout_s, payload, theirs), daemon=True
            )
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        return _collect(processes, pipes, timeout_s)
    finally:
        # Every rank has answered or failed: a rank that waits for the others to finish is ended too.
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
        for pipe in pipes:
            pipe.close()
        shutil.rmtree(folder, ignore_errors=True)


def _collect(processes: list[BaseProcess], pipes: list[Connection], timeout_s: float) -> list[Any]:
    """Results by rank; raises RanksFailedError at the first failure or after `timeout_s`."""
    results: dict[int, Any] = {}
    failures: dict[int, str] = {}
    rank_of = {pipe: rank for rank, pipe in enumerate(pipes)}
    deadline = time.monotonic() + timeout_s
    while rank_of:
        ready = wait(list(rank_of), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = rank_of.pop(pipe)
            try:
                succeeded, answer = pickle.loads(pipe.recv_bytes())
            except EOFError:  # its end of the pipe closed without an answer
                processes[rank].join(timeout=GRACE_S)
                succeeded, answer = False, f"died with exit code {processes[rank].exitcode}"
            if succeeded:
                results[rank] = answer
            else:
                failures[rank] = answer
                deadline = min(deadline, time.monotonic() + GRACE_S)
    if rank_of and not failures:
        unfinished = sorted(rank_of.values())
        raise RanksFailedError(f"ranks {unfinished} of {len(pipes)} did not finish in {timeout_s} s")
    if failures:
        said = "\n".join(f"rank {rank}: {text}" for rank, text in failures.items())
        raise RanksFailedError(f"{len(failures)} of {len(pipes)} ranks failed\n{said}")
    return [results[rank] for rank in range(len(pipes))]


def _rank_main(
    rank: int, world_size: int, folder: str, timeout_s: float, payload: bytes, pipe: Connection
) -> None:
    """One rank: joins the group, runs the function, answers through the pipe."""
    import torch
    import torch.distributed as dist

    try:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        fn, args = pickle.loads(payload)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/rendezvous",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_s),
        )
        answer = (True, fn(rank, world_size, *args))
        message = pickle.dumps(answer)
    except BaseException:
        message = pickle.dumps((False, traceback.format_exc()))
    pipe.send_bytes(message)
    # Stay until the caller has every answer and ends us, so that no peer sees our connections close early.
    with contextlib.suppress(EOFError):
        pipe.recv_bytes()
    os._exit(0)
