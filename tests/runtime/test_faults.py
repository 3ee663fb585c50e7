"""Faults of a run: it ends soon, says once what happened, exits non-zero, and leaves nothing running."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from datetime import timedelta
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from seqplan.planner.errors import SeqplanError
from seqplan.runtime.train import limit_all_groups
from tests.ranks import run_ranks
from tests.runtime.fake_run import fake_run, pid_file, start

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(120)]

RANKS = 2
TIMEOUT_S = 5.0
STOPPED_WITHIN_S = 15.0
"""After the timeout: 2 s of patience and 5 s for SIGTERM, the rest is a busy machine; torch takes 30 s."""
GONE_WITHIN_S = 10.0
"""How soon every rank must be gone after the launcher: they are killed, the rest is a busy machine."""


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher sets what the user has not; here it must not leak into other tests."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def assert_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + GONE_WITHIN_S
    while time.monotonic() < deadline and any(running(pid) for pid in pids):
        time.sleep(0.05)
    assert not [pid for pid in pids if running(pid)]


def ranks_of(folder: Path) -> list[int]:
    return [int(pid_file(folder, rank).read_text()) for rank in range(RANKS)]


@pytest.fixture(autouse=True)
def _own_fork_server() -> None:
    """Ranks write to the fork server's stderr: one of an earlier test would write into that test's."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


def test_a_run_without_fault(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = fake_run("well", RANKS, tmp_path)
    assert result.exit_code == 0
    assert result.summary is not None
    assert result.summary.last_loss == RANKS / 6  # what FakeTrainer returns in step 6
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [f'"step":{step},' in line for step, line in enumerate(lines, start=1)] == [True] * 6
    assert (tmp_path / "summary.json").exists()
    assert "step 6/6 | loss 0.3333" in capfd.readouterr().err
    assert_gone(ranks_of(tmp_path))


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("killed", ["rank 1 of 2", "signal 9 (SIGKILL)"]),
        ("raising", ["rank 1 of 2 failed", "ValueError: no such thing at all", "in train_step"]),
    ],
)
def test_a_rank_that_dies_ends_the_run(
    mode: str, says: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    result = fake_run(mode, RANKS, tmp_path)
    assert result.exit_code == 1
    assert time.monotonic() - started < 40.0  # far from timeout_s = 60: nobody waited for the dead
    said = capfd.readouterr().err
    for part in says:
        assert part in said
    # One block: the neighbour's lost connection and the launcher's own traceback are not the cause.
    assert said.count("The run failed") == 1
    assert said.count("Traceback") == (1 if mode == "raising" else 0)
    assert_gone(ranks_of(tmp_path))


def test_a_hang_ends_at_the_timeout_and_names_the_place(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert fake_run("hanging", RANKS, tmp_path, timeout_s=TIMEOUT_S).exit_code == 1
    hung_s = (tmp_path / "metrics.jsonl").stat().st_mtime  # the last step before it
    assert time.time() - hung_s < TIMEOUT_S + STOPPED_WITHIN_S
    said = capfd.readouterr().err
    assert "rank 0 of 2 waited timeout_s=5 s for another rank in vain" in said
    assert "rank 1 was at: " in said
    assert "in _hang" in said
    assert_gone(ranks_of(tmp_path))


def test_a_stopped_rank_is_killed_soon_after_the_timeout(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """SIGTERM waits for ever at a process that is stopped."""
    assert fake_run("stopped", RANKS, tmp_path, timeout_s=TIMEOUT_S).exit_code == 1
    stopped_s = (tmp_path / "metrics.jsonl").stat().st_mtime  # the last step before it
    assert time.time() - stopped_s < TIMEOUT_S + STOPPED_WITHIN_S
    assert "rank 0 of 2 waited timeout_s=5 s for another rank in vain" in capfd.readouterr().err
    assert_gone(ranks_of(tmp_path))


def wait_for_an_absent_peer(rank: int, world_size: int) -> float | None:
    """Seconds that rank 0 waits for rank 1 in a collective of a mesh's axis."""
    mesh = init_device_mesh("cpu", (world_size // 2, 2), mesh_dim_names=("dp", "sp"))
    limit_all_groups(timedelta(seconds=1))
    if rank:
        time.sleep(8.0)
        return None
    started = time.monotonic()
    with pytest.raises(RuntimeError, match="Timed out"):
        dist.all_reduce(torch.ones(1), group=mesh["sp"].get_group())
    return time.monotonic() - started


def test_the_timeout_holds_for_the_groups_of_a_mesh() -> None:
    """torch gives these groups 30 minutes, whatever init_process_group was told (measured with 2.13)."""
    waited_s = run_ranks(4, wait_for_an_absent_peer, timeout_s=60.0)[0]
    assert waited_s is not None
    assert 0.5 < waited_s < 7.0


def test_a_wrong_input_found_by_a_rank_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SeqplanError, match=r"^rank 1: this input is wrong\. Give another\.$"):
        fake_run("misused", RANKS, tmp_path)
    assert_gone(ranks_of(tmp_path))


def test_a_signal_to_the_launcher_ends_all(tmp_path: Path) -> None:
    """kill, kill -9, and Ctrl-C (a terminal sends it to the whole group), while a rank waits in vain."""
    signals = {"INT": signal.SIGINT, "TERM": signal.SIGTERM, "KILL": signal.SIGKILL}
    folders = {name: tmp_path / name for name in signals}
    launchers = {name: start("hanging", str(RANKS), str(folder)) for name, folder in folders.items()}
    try:
        for name, launcher in launchers.items():
            wait_for_step(folders[name], launcher)
            if name == "INT":
                os.killpg(launcher.pid, signals[name])
            else:
                launcher.send_signal(signals[name])
        expected = {"INT": 130, "TERM": 143, "KILL": -9}  # a shell's 128 + number; Popen's own for kill -9
        for name, launcher in launchers.items():
            _, said = launcher.communicate(timeout=GONE_WITHIN_S)
            assert launcher.returncode == expected[name], said
            assert "Traceback" not in said
            assert_gone(ranks_of(folders[name]))
    finally:
        for launcher in launchers.values():
            launcher.kill()
            launcher.wait()


def wait_for_step(folder: Path, launcher: subprocess.Popen[str]) -> None:
    """Until the last step before the fault has been written."""
    metrics = folder / "metrics.jsonl"
    deadline = time.monotonic() + 90.0
    while not (metrics.exists() and '"step":3,' in metrics.read_text()):
        assert launcher.poll() is None, launcher.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_two_nodes_meet_and_compare_their_data(tmp_path: Path) -> None:
    with socket.socket() as port:
        port.bind(("localhost", 0))
        endpoint = f"localhost:{port.getsockname()[1]}"
    folders = [tmp_path / "node0", tmp_path / "node1"]
    folders[1].mkdir()
    (folders[1] / "text.txt").write_text("another text")
    nodes = [start("well", str(RANKS), str(folder), str(i), endpoint) for i, folder in enumerate(folders)]
    try:
        for node in nodes:
            _, said = node.communicate(timeout=90)
            assert node.returncode == 2, said
            assert "The data differs between nodes: rank 0 sees 1 files with 720 bytes" in said
            assert "rank 1 1 files with 12 bytes" in said
    finally:
        for node in nodes:
            node.kill()
            node.wait()
