"""Ranks that another launcher started, and what is said when ranks or nodes do not find each other."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from seqplan.planner.errors import FailedError, SeqplanError
from seqplan.runtime.launching.meeting import nodes_did_not_meet, rank_of_another_launcher
from seqplan.runtime.launching.nodes import Nodes, check_outer_launcher
from tests.runtime.fake_run import fake_run


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
    return port


def started(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int, port: int | None = None) -> None:
    """What another launcher sets, and what ours would leave in the environment of other tests."""
    outer = {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port or free_port()),
    }
    ours = ("OMP_NUM_THREADS", "KINETO_LOG_LEVEL", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE")
    for name, value in {**outer, **dict.fromkeys(ours, "1"), "TORCH_CPP_LOG_LEVEL": "ERROR"}.items():
        monkeypatch.setenv(name, value)


def test_an_outer_launcher_is_believed_only_with_the_plans_world_size() -> None:
    environment = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "here", "MASTER_PORT": "29500"}
    assert check_outer_launcher(4, environment)
    assert not check_outer_launcher(4, {"WORLD_SIZE": "2"})
    with pytest.raises(SeqplanError, match=r"^The plan needs 8 ranks, but 4 were started \(WORLD_SIZE=4\)\."):
        check_outer_launcher(8, environment)


def test_a_wrong_world_size_stops_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(monkeypatch, rank=0, world_size=3)
    with pytest.raises(SeqplanError, match="The plan needs 2 ranks, but 3 were started"):
        fake_run("well", 2, tmp_path)
    assert not (tmp_path / "metrics.jsonl").exists()


def test_under_an_outer_launcher_this_process_is_a_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(monkeypatch, rank=1, world_size=2)
    devices = []
    monkeypatch.setattr(
        "seqplan.runtime.train.train", lambda plan, files, options, device, make: devices.append(device)
    )
    assert fake_run("well", 2, tmp_path).exit_code == 0
    assert devices == ["cpu"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"MASTER_PORT": None}, "MASTER_PORT is not set, but RANK, WORLD_SIZE and MASTER_ADDR are."),
        ({"MASTER_PORT": "http"}, "MASTER_PORT='http' must be a number from 1 to 65535."),
        (
            {"RANK": "4", "MASTER_PORT": "0"},
            "RANK='4' must be a number from 0 to 3; MASTER_PORT='0' must be a number from 1 to 65535.",
        ),
    ],
)
def test_what_an_outer_launcher_left_out(changes: dict[str, str | None], says: str) -> None:
    whole = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "here", "MASTER_PORT": "29500", **changes}
    with pytest.raises(SeqplanError) as caught:
        check_outer_launcher(4, {name: value for name, value in whole.items() if value is not None})
    assert caught.value.message == says
    assert "as torchrun does" in caught.value.hint


def test_too_few_ranks_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, rank=0, world_size=2)
    with pytest.raises(FailedError, match=r"^Only 1 of 2 ranks came to localhost:\d+ within timeout_s=1 s\."):
        fake_run("well", 2, tmp_path, timeout_s=1.0)


def test_rank_0_did_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, rank=1, world_size=2)
    with pytest.raises(FailedError, match=r"^Rank 1 did not reach rank 0 at localhost:\d+ within timeout"):
        fake_run("well", 2, tmp_path, timeout_s=1.0)


def test_a_port_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        started(monkeypatch, rank=0, world_size=2, port=port)
        with pytest.raises(SeqplanError, match=rf"^Rank 0 cannot open localhost:{port}: the port is in"):
            fake_run("well", 2, tmp_path, timeout_s=1.0)


def test_an_interface_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, rank=0, world_size=1)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    with pytest.raises(SeqplanError, match=r"^GLOO_SOCKET_IFNAME=nosuch0 is no network interface") as caught:
        fake_run("well", 1, tmp_path, timeout_s=5.0)
    assert "set it to one of " in caught.value.hint
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[gloo/pair.cc:1] Connection closed by peer [::1]:4\nframe",
            "^rank 3 lost its connection: another rank has",
        ),
        (
            "[gloo/buffer.cc:2] Timed out waiting 5000ms for recv",
            "^rank 3 waited timeout_s=5 s for another rank in vain",
        ),
    ],
)
def test_the_end_of_another_rank_is_one_line(text: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(FailedError, match=says) as caught, rank_of_another_launcher(5.0):
        raise RuntimeError(text)
    assert "\n" not in str(caught.value)


def test_a_fault_of_this_rank_keeps_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), rank_of_another_launcher(5.0):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


def test_nodes_that_do_not_meet_are_one_line() -> None:
    nodes = Nodes(nnodes=3, node_rank=1, local_world_size=2, endpoint="host:1234")
    busy = nodes_did_not_meet(RuntimeError("... EADDRINUSE ..."), nodes, 5.0)
    assert busy.message == "Node 1 cannot open host:1234: the port is in use."
    late = nodes_did_not_meet(RuntimeError("timed out\nframe #0"), nodes, 5.0)
    assert late.message == "Not all 3 nodes met at host:1234 within 5 s."
    assert "--node-rank 0, 2 too, with the same plan file on every node," in late.hint
