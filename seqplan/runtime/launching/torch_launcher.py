"""Where torch's elastic launcher (2.13) does otherwise than a run of ours should: what it logs, how long it
waits, and that it keeps the signal handlers."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from seqplan.runtime.launching.signals import ENDING

SHUTDOWN_S = 5
"""How long a rank has to end after SIGTERM. One that is stopped (SIGSTOP) never does, and is killed then."""


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Silence what torch's launcher logs about a failure, its own traceback included; ours is one block."""
    prefixes = ("torch.distributed.elastic", "torch.multiprocessing.spawn")
    names = [name for name in logging.root.manager.loggerDict if name.startswith(prefixes)]
    loggers = [logging.getLogger(name) for name in names]  # each has a level of its own
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def soon_killed() -> Iterator[None]:
    """SHUTDOWN_S also after a rank has failed: there torch takes 30 s, which no option changes (2.13)."""
    from torch.multiprocessing.spawn import ProcessContext

    wait = ProcessContext._join_procs_with_timeout

    def shorter(context: ProcessContext, timeout: float) -> None:
        wait(context, min(timeout, SHUTDOWN_S))

    ProcessContext._join_procs_with_timeout = shorter  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ProcessContext._join_procs_with_timeout = wait  # type: ignore[method-assign]


@contextmanager
def same_signal_handlers() -> Iterator[None]:
    """Put back the handlers that torch's launcher replaces."""
    handlers = [(number, signal.getsignal(number)) for number in ENDING]
    try:
        yield
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)
