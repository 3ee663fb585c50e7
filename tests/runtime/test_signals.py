"""Signals before and after torch's launcher listens, those that nohup ignores, and what SIGKILL leaves."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from seqplan.runtime.launching.run_folder import remove_leftovers, run_folder
from seqplan.runtime.launching.signals import EndedBySignal, EndingSignals, ignored_signals
from tests.runtime.fake_run import start

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(120)]

PATIENCE_S = 90.0
"""A run of a few steps on a busy machine."""


def as_nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_what_was_ignored_at_the_start_stays_ignored(tmp_path: Path) -> None:
    """SIGHUP and SIGINT to launcher, fork server and ranks, in the middle of a run that then goes on."""
    launcher = start("hung up", "2", str(tmp_path), preexec_fn=as_nohup)
    try:
        _, said = launcher.communicate(timeout=PATIENCE_S)
    finally:
        launcher.kill()
        launcher.wait()
    assert launcher.returncode == 0, said
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 6
    assert "step 6/6" in said


def test_a_signal_before_any_rank_is_started_leaves_nothing(tmp_path: Path) -> None:
    """Sent as soon as the launcher has made a folder, a second or two before torch's own handlers."""
    temporary = Path(tempfile.mkdtemp(prefix="sp-"))  # short: sockets lie in it
    launcher = start("hanging", "2", str(tmp_path), env={**os.environ, "TMPDIR": str(temporary)})
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not list(temporary.iterdir()):
            assert launcher.poll() is None, launcher.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        launcher.send_signal(signal.SIGTERM)
        _, said = launcher.communicate(timeout=PATIENCE_S)
    finally:
        launcher.kill()
        launcher.wait()
        left = [path for path in temporary.iterdir() if not path.name.startswith("torchinductor")]
        shutil.rmtree(temporary, ignore_errors=True)
    assert launcher.returncode == 143, said  # 128 + 15
    assert said == "Ended by SIGTERM; all ranks of this node have been stopped.\n"
    assert not left


STUCK = """
import ctypes, os, signal, sys, tempfile, threading
from seqplan.runtime.launching.signals import EndingSignals
with EndingSignals(), tempfile.TemporaryDirectory(dir=sys.argv[1]):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    kill = lambda: os.kill(os.getpid(), signal.SIGTERM)
    threading.Timer(0.1, kill).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    mutex = ctypes.create_string_buffer(256)
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""
"""A main thread that waits in C for ever (a mutex that it holds itself): no Python handler can run."""


@pytest.mark.skipif(sys.platform != "linux", reason="a mutex of zeros is glibc's and musl's")
def test_a_signal_ends_who_waits_in_c_for_other_nodes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STUCK, str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 143, done.stderr
    assert done.stderr == "Ended by SIGTERM; all ranks of this node have been stopped.\n"
    assert not list(tmp_path.iterdir())


def hear_within_a_held_block(reached: list[str]) -> None:
    with EndingSignals() as signals, signals.held():
        signal.raise_signal(signal.SIGTERM)
        reached.append("the end")


def test_a_signal_that_is_held_raises_at_the_end_of_the_block() -> None:
    before = signal.getsignal(signal.SIGTERM)
    reached: list[str] = []
    with pytest.raises(EndedBySignal) as caught:
        hear_within_a_held_block(reached)
    assert (caught.value.signal, reached) == (signal.SIGTERM, ["the end"])
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_ignored_signal_is_not_taken_over() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with EndingSignals():
            assert signal.SIGHUP in ignored_signals()
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_next_run_removes_what_a_killed_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, in_use, young = (tmp_path / f"seqplan-run-{name}" for name in ("left", "in-use", "young"))
    foreign = tmp_path / "another-thing"
    for folder in (left, in_use, young, foreign):
        folder.mkdir()
        (folder / "rank-0.stack").touch()
        if folder is not young:
            os.utime(folder, (0, 0))
    handle = os.open(in_use, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        remove_leftovers(tmp_path)
    finally:
        os.close(handle)
    assert sorted(tmp_path.iterdir()) == sorted([in_use, young, foreign])

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with run_folder() as folder:
        assert folder.parent == tmp_path
        os.utime(folder, (0, 0))
        remove_leftovers(tmp_path)
        assert folder.exists(), "the lock of a run that goes on"
    assert sorted(tmp_path.iterdir()) == sorted([young, foreign])
