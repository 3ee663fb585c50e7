"""One rank's process: ends with its launcher, writes down why it failed, and never outlives the run."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from seqplan.runtime.launching.failures import record_failure, stack_file
from seqplan.runtime.launching.signals import ENDING
from seqplan.runtime.options import MakeTrainer, RunOptions
from seqplan.runtime.text_files import TextFiles

if TYPE_CHECKING:
    from seqplan.planner.plan import Plan
    from seqplan.runtime.metrics import RunSummary

PATIENCE_S = 2.0
"""How long a rank that lost a peer waits before it ends, so that the peer's end is the first one seen."""


@dataclass(frozen=True)
class Job:
    """All that a rank needs; the same object for every rank."""

    plan: Plan
    files: TextFiles
    options: RunOptions
    device_type: str
    log_dir: Path
    make_trainer: MakeTrainer | None = None
    ignored: tuple[signal.Signals, ...] = ()
    """Signals that the launcher was started to ignore; its ranks do too."""


def rank_main(job: Job) -> RunSummary | None:
    """What every rank runs. Returns the summary on rank 0."""
    rank = int(os.environ["RANK"])
    _end_with_launcher()
    # Ctrl-C reaches every process, no traceback for it; the fork server, whence we come, is deaf to it.
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN if number in job.ignored else signal.SIG_DFL)
    with _open_stack(stack_file(job.log_dir, rank)) as stack:
        # The launcher ends ranks with SIGTERM; what a rank was doing then tells which one hung.
        faulthandler.register(signal.SIGTERM, file=stack, all_threads=False, chain=True)
        try:
            from seqplan.runtime.train import train

            return train(job.plan, job.files, job.options, job.device_type, job.make_trainer)
        except Exception as error:
            if record_failure(job.log_dir, rank, error).kind.startswith("peer"):
                time.sleep(PATIENCE_S)
            sys.stdout.flush()
            sys.stderr.flush()
            # Not by raising: taking the process groups apart can block once a peer is gone.
            os._exit(1)
        finally:
            faulthandler.unregister(signal.SIGTERM)


def _open_stack(path: Path) -> TextIO:
    try:
        return path.open("w")
    except OSError:  # a full disk: the run may do without
        return open(os.devnull, "w")


def _end_with_launcher() -> None:
    """End this process when the launcher has ended in any way, kill -9 included.

    multiprocessing hands every child a handle that becomes ready at that moment. (The kernel's
    parent-death signal would follow the fork server instead, which outlives the launcher.)
    """
    parent = multiprocessing.parent_process()
    if parent is None:  # started by somebody else's launcher, which looks after its own
        return
    sentinel = parent.sentinel

    def watch() -> None:
        wait([sentinel])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="launcher watch", daemon=True).start()
