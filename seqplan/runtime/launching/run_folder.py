"""The folder where ranks write down how they failed; it goes with the run, at the latest with the next one.

A launcher that is killed with SIGKILL cannot take its folder away. It holds a lock on it, which the system
lets go of when the process ends in any way: a folder without one is nobody's. (A process number in the
name would say less: containers that share a temporary folder count their processes each for itself.)
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "seqplan-run-"
_YOUNG_S = 60.0
"""A folder this young may be about to be locked by the launcher that has just made it."""


@contextmanager
def run_folder() -> Iterator[Path]:
    """A new folder, removed at the end; first those of launchers that were killed."""
    remove_leftovers(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder:
        handle = os.open(folder, os.O_RDONLY)  # not inherited: ranks outlive a killed launcher for a moment
        try:
            _lock(handle)
            yield Path(folder)
        finally:
            os.close(handle)


def remove_leftovers(place: Path) -> None:
    """Remove the folders below `place` that nobody holds; what is another user's stays."""
    for folder in place.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime < _YOUNG_S:
                continue
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(handle).st_uid == os.getuid() and _lock(handle):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)


def _lock(handle: int) -> bool:
    """False: another process has it, or this file system knows no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
