"""How signals end a run: in the same way before torch's launcher listens, while it does, and after.

A signal that was ignored when this process started stays ignored, here and in the ranks: `nohup` ignores
SIGHUP, a shell script ignores SIGINT for what it starts with `&`.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""What ends a run: those that torch's launcher answers too (torch 2.13)."""

FROM_A_TERMINAL = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""What every process of a run gets at once: Ctrl-C, a terminal that closes, Ctrl-backslash."""

SIGNAL_BASE = 128
"""Exit status of a process that was ended by a signal, as shells report it: 128 + its number."""

_STUCK_S = 2.0
"""After so long, who was told to end waits in C, where Python answers no signal: for other nodes, say."""


class EndedBySignal(BaseException):
    """Told to end while torch's launcher did not listen."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)


def ended_by(number: signal.Signals) -> str:
    return f"Ended by {number.name}; all ranks of this node have been stopped."


def ignored_signals() -> tuple[signal.Signals, ...]:
    """Those of ENDING that this process ignores."""
    return tuple(number for number in ENDING if signal.getsignal(number) is signal.SIG_IGN)


class EndingSignals:
    """While it is entered, a signal whose default would end this process at once raises EndedBySignal.

    SIGINT is left to Python, which raises KeyboardInterrupt; what somebody else handles, to them. No ranks
    may run unless torch's launcher has put its own handlers in the place of these: where the exception
    cannot be raised, because the main thread waits in C, another thread tidies up and ends the process.
    """

    def __init__(self) -> None:
        self._defaults: list[signal.Signals] = []
        self._heard: int | None = None
        self._held = False
        self._left = threading.Event()

    def __enter__(self) -> EndingSignals:
        for number in ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._hear)
                self._defaults.append(number)
        self._told, self._tell = os.pipe()
        os.set_blocking(self._tell, False)
        self._told_before = signal.set_wakeup_fd(self._tell, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="signal watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        signal.set_wakeup_fd(self._told_before)
        os.close(self._tell)  # which ends the thread
        for number in self._defaults:
            signal.signal(number, signal.SIG_DFL)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._heard = number
        if not self._held:
            raise EndedBySignal(number)

    def _watch(self) -> None:
        """Of each signal the system tells its number through the pipe, wherever the main thread is."""
        while told := os.read(self._told, 1):
            number = told[0]
            if self._answers(number) and not self._left.wait(_STUCK_S) and self._answers(number):
                print(ended_by(signal.Signals(number)), file=sys.stderr, flush=True)
                atexit._run_exitfuncs()  # temporary folders, ours and multiprocessing's
                os._exit(SIGNAL_BASE + number)
        os.close(self._told)

    def _answers(self, number: int) -> bool:
        handler = signal.getsignal(number) if number in ENDING else None
        return handler in (self._hear, signal.default_int_handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Raise only at the end of the block: what it makes would otherwise have nobody to take it away."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        self.check()

    def check(self) -> None:
        """Raise for a signal that was held, or whose exception an import or a destructor has swallowed."""
        if self._heard is not None:
            raise EndedBySignal(self._heard)
