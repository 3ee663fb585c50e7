"""Starts the ranks of a plan on this node, watches them, and says once what went wrong.

torch's elastic launcher does the starting and watching. Ranks are forked from a fork server that has
imported torch, so that many ranks cost one import; the fork server is started first, and imports while
this process does. Nothing here imports torch before it has to: a wrong world size is told at once.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from seqplan.planner.errors import SeqplanError
from seqplan.runtime.launching.failures import explain_failure
from seqplan.runtime.launching.host_memory import cpu_holds, require_memory
from seqplan.runtime.launching.meeting import nodes_did_not_meet, rank_of_another_launcher
from seqplan.runtime.launching.nodes import (
    Nodes,
    check_outer_launcher,
    find_nodes,
    outer_local_world_size,
)
from seqplan.runtime.launching.run_folder import run_folder
from seqplan.runtime.launching.signals import (
    ENDING,
    FROM_A_TERMINAL,
    SIGNAL_BASE,
    EndedBySignal,
    EndingSignals,
    ended_by,
    ignored_signals,
)
from seqplan.runtime.launching.torch_launcher import (
    SHUTDOWN_S,
    quiet_torch,
    same_signal_handlers,
    soon_killed,
)
from seqplan.runtime.launching.worker import Job, rank_main
from seqplan.runtime.options import MakeTrainer, RunOptions
from seqplan.runtime.text_files import TextFiles

if TYPE_CHECKING:
    from seqplan.planner.plan import Plan
    from seqplan.runtime.metrics import RunSummary

PRELOAD = [
    "torch",
    "torch.distributed.device_mesh",
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "torch.distributed.elastic.multiprocessing.api",
    "torch.profiler",
    "rich.progress",
    "seqplan.runtime.train",
    "seqplan.runtime.trainer",
]
"""What the fork server imports, once for all ranks."""

FAILED = 1


@dataclass(frozen=True)
class RunResult:
    """How a run ended: the exit status for the shell, and the summary where rank 0 ran here and finished."""

    exit_code: int
    summary: RunSummary | None = None


def launch(
    plan: Plan, data: list[Path], options: RunOptions, make_trainer: MakeTrainer | None = None
) -> RunResult:
    """Run this node's ranks to their end; planned beside measured is in the summary, for the caller to print.

    SeqplanError: a wrong input; all but what only a rank can find is told before anything is started.
    """
    started_already = check_outer_launcher(plan.layout.world_size, os.environ)
    nodes = None if started_already else find_nodes(options, plan.layout.world_size, os.environ)
    files = TextFiles.find(data)
    _make_folder(options.output_dir)
    local_world_size = nodes.local_world_size if nodes else outer_local_world_size(os.environ)
    _set_environment(_threads(plan, local_world_size))
    if nodes is None:  # this process is one of the ranks, and whoever started it reports how it ends
        device_type = _ready_device(plan, options, local_world_size)
        from seqplan.runtime.train import train

        with rank_of_another_launcher(options.timeout_s):
            return RunResult(0, train(plan, files, options, device_type, make_trainer))
    try:
        with EndingSignals() as signals:
            with signals.held():
                _start_fork_server()
            device_type = _ready_device(plan, options, local_world_size)
            with run_folder() as log_dir:
                job = Job(plan, files, options, device_type, log_dir, make_trainer, ignored_signals())
                return _run_ranks(job, nodes, signals)
    except EndedBySignal as ended:
        return _ended_by(ended.signal)


def _ready_device(plan: Plan, options: RunOptions, local_world_size: int) -> str:
    device_type = choose_device(plan, options, local_world_size)
    if device_type == "cpu":
        require_memory(plan, local_world_size)
    return device_type


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SeqplanError(
            f"output_dir={folder} cannot be written to ({error.strerror}).", "Choose another --output-dir."
        ) from None


def choose_device(plan: Plan, options: RunOptions, local_world_size: int) -> str:
    """The device type, "cuda" (which is also torch's name for ROCm) or "cpu". SeqplanError: too few GPUs."""
    kind = plan.cluster.device.kind
    if options.device == "cpu" or (options.device == "auto" and kind == "cpu"):
        return "cpu"
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found < local_world_size:
        raise SeqplanError(
            f"The plan needs {local_world_size} GPUs on this node ({plan.cluster.device.name}),"
            f" torch sees {found}.",
            _where_to_run(plan, local_world_size),
        )
    return "cuda"


def _where_to_run(plan: Plan, local_world_size: int) -> str:
    """Other nodes where the plan has them, the CPU where this machine's memory holds the plan."""
    per_node, world_size = plan.cluster.gpus_per_node, plan.layout.world_size
    hint = "Run it on the cluster that it was made for"
    if local_world_size == world_size > per_node and world_size % per_node == 0:
        hint = (
            f"Start it on each of its {world_size // per_node} nodes with --nnodes {world_size // per_node}, "
            "--node-rank and --rdzv-endpoint"
        )
    return hint + (", or with --device cpu." if cpu_holds(plan, local_world_size) else ".")


def _run_ranks(job: Job, nodes: Nodes, signals: EndingSignals) -> RunResult:
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    digest = hashlib.blake2b(job.plan.model_dump_json().encode(), digest_size=8).hexdigest()
    config = LaunchConfig(
        min_nodes=nodes.nnodes,
        max_nodes=nodes.nnodes,
        nproc_per_node=nodes.local_world_size,
        run_id=f"seqplan-{digest}",
        max_restarts=0,
        start_method=_start_method(),
        logs_specs=DefaultLogsSpecs(log_dir=str(job.log_dir / "elastic")),
        shutdown_timeout=SHUTDOWN_S,
        signals_to_handle=",".join(number.name for number in ENDING if number not in job.ignored),
        **_rendezvous(nodes, job.options.timeout_s),
    )
    console = _console()
    with quiet_torch(), same_signal_handlers(), soon_killed():
        signals.check()
        try:
            results: Mapping[int, Any] = elastic_launch(config, rank_main)(job)
            return RunResult(0, results.get(0))
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            if -failure.exitcode == signal.SIGINT:  # Ctrl-C reached a rank before it reached us
                return RunResult(SIGNAL_BASE + signal.SIGINT)
            text = explain_failure(
                job.log_dir,
                rank,
                failure.pid,
                failure.exitcode,
                job.plan.layout.world_size,
                job.options.timeout_s,
            )
            console.print(f"The run failed: {text.rstrip()}", soft_wrap=True)
            return RunResult(FAILED)
        except DistError as error:
            raise nodes_did_not_meet(error, nodes, job.options.timeout_s) from None
        except SignalException as error:
            return _ended_by(error.sigval)
        finally:
            if console.is_terminal:  # a rank that was drawing its progress line had hidden it
                console.show_cursor(True)


def _console() -> Console:
    return Console(stderr=True, highlight=False, markup=False)


def _ended_by(number: signal.Signals) -> RunResult:
    _console().print(ended_by(number), soft_wrap=True)
    return RunResult(SIGNAL_BASE + number)


def _rendezvous(nodes: Nodes, timeout_s: float) -> dict[str, Any]:
    """Several nodes meet at a fixed place in a fixed order; one node by itself, at any free port."""
    timeout = max(1, round(timeout_s))
    if nodes.endpoint is None:
        return {
            "rdzv_backend": "c10d",
            "rdzv_endpoint": "localhost:0",
            "rdzv_configs": {"timeout": timeout, "is_host": True},
            "local_addr": "localhost",
        }
    return {
        "rdzv_backend": "static",
        "rdzv_endpoint": nodes.endpoint,
        "rdzv_configs": {"timeout": timeout, "rank": nodes.node_rank},
    }


def _threads(plan: Plan, local_world_size: int) -> int:
    """Threads of a rank: one where the plan counts in cores, else this node's cores shared out."""
    if plan.cluster.device.kind == "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // local_world_size)


def _set_environment(threads: int) -> None:
    """What torch reads when it is loaded, here and in every rank. The user's own settings win."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler announces itself otherwise
    # Workers get a store of their own: with the launcher's, gloo reads addresses of ranks that are gone.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")


def _start_method() -> str:
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def _start_fork_server() -> None:
    """Begin importing torch for the ranks; deaf to what a terminal sends to all: this process answers it.

    So is multiprocessing's resource tracker, which starts here too.
    """
    if _start_method() == "forkserver":
        multiprocessing.set_forkserver_preload(PRELOAD)
        ours = [(number, signal.signal(number, signal.SIG_IGN)) for number in FROM_A_TERMINAL]
        try:
            forkserver.ensure_running()
        except OSError as error:
            if "too long" not in str(error):  # a socket's path has 108 bytes at most on Linux
                raise
            raise SeqplanError(
                f"TMPDIR={tempfile.gettempdir()} is too long for a socket that lies in it ({error}).",
                "Set TMPDIR to a shorter path, such as /tmp.",
            ) from None
        finally:
            for number, handler in ours:
                signal.signal(number, handler)
