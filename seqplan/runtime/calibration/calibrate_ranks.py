"""Starts the ranks that measure this machine, passes on how far they are, and ends them whatever happens.

Ranks are forked from a fork server that has imported torch and run nothing: forking a process that has run
torch's thread pools hangs. A rank that raises, dies or does not finish ends the whole measurement with one
message.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from seqplan.planner.errors import FailedError

PRELOAD = [
    "torch",
    "torch.distributed",
    "torch.distributed.tensor",
    "seqplan.runtime.calibration.calibrate_layer",
]
"""What the fork server imports, once for all ranks."""

Progress = Callable[[str, float], None]
"""(what is measured now, the share that is done)."""

Measure = Callable[..., Any]
"""fn(rank, world_size, device_type, report, *args); at the top level of a module, it travels by name."""


def run_on_ranks(
    world_size: int,
    device_type: str,
    fn: Measure,
    args: tuple[Any, ...],
    progress: Progress,
    timeout_s: float,
) -> Any:
    """What rank 0 returns. FailedError: a rank failed, or not all finished within `timeout_s`."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # libgomp reads it when torch is loaded
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    folder = tempfile.mkdtemp(prefix="seqplan-calibrate-")
    ranks: list[tuple[BaseProcess, Connection]] = []
    try:
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            arguments = (rank, world_size, folder, device_type, timeout_s, pickle.dumps((fn, args)), theirs)
            process: BaseProcess = context.Process(target=_rank_main, args=arguments, daemon=True)
            process.start()
            theirs.close()
            ranks.append((process, ours))
        return _answer(ranks, progress, timeout_s)
    finally:
        for process, pipe in ranks:
            process.kill()
            process.join()
            pipe.close()
        shutil.rmtree(folder, ignore_errors=True)


def _answer(ranks: list[tuple[BaseProcess, Connection]], progress: Progress, timeout_s: float) -> Any:
    """Rank 0's answer, when all have one."""
    deadline = time.monotonic() + timeout_s
    waiting = {pipe: rank for rank, (_, pipe) in enumerate(ranks)}
    answer: Any = None
    while waiting:
        ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise FailedError(f"The ranks {sorted(waiting.values())} did not finish within {timeout_s:g} s.")
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = waiting[pipe]
            try:
                kind, said = pickle.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                ranks[rank][0].join(timeout=1.0)
                code = ranks[rank][0].exitcode
                raise FailedError(f"Rank {rank} of {len(ranks)} ended with exit code {code}.") from None
            if kind == "failed":
                raise FailedError(f"Rank {rank} of {len(ranks)} could not measure: {said}")
            if kind == "progress":
                progress(*said)
                continue
            del waiting[pipe]
            answer = said if rank == 0 else answer
    return answer


def _rank_main(
    rank: int,
    world_size: int,
    folder: str,
    device_type: str,
    timeout_s: float,
    payload: bytes,
    pipe: Connection,
) -> None:
    """One rank: joins the group, measures, answers through the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: who started them ends them
    import torch.distributed as dist

    def tell(kind: str, said: Any) -> None:
        pipe.send_bytes(pickle.dumps((kind, said)))

    try:
        fn, args = pickle.loads(payload)
        device = prepare_device(device_type, rank)
        dist.init_process_group(
            "nccl" if device_type == "cuda" else "gloo",
            init_method=f"file://{folder}/rendezvous",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_s),
        )
        report = (lambda what, share: tell("progress", (what, share))) if rank == 0 else None
        tell("done", fn(device, report, *args))
        dist.barrier()  # no peer may see our connections close early
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
        tell("failed", f"{type(error).__name__}: {lines[0]}")
    os._exit(0)


def prepare_device(device_type: str, local_rank: int) -> Any:
    """This rank's device: one thread on a CPU, its own GPU elsewhere."""
    import torch

    if device_type == "cuda":
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    torch.set_num_threads(1)
    return torch.device("cpu")
