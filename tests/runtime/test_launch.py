"""Which nodes and ranks a run has, and what is said about a failure; nothing is started here."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from seqplan.planner.errors import FailedError, SeqplanError
from seqplan.planner.plan import Plan
from seqplan.runtime import launch as launch_module
from seqplan.runtime.launch import choose_device, launch
from seqplan.runtime.launching import host_memory
from seqplan.runtime.launching.failures import classify, explain_failure, record_failure, stack_file
from seqplan.runtime.launching.nodes import Nodes, find_nodes, first_host
from seqplan.runtime.options import RunOptions
from tests.runtime.fake_run import fake_plan

SLURM = {
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "1234567",
    "SLURM_JOB_NODELIST": "gpu[007-008]",
    "SLURM_STEP_NUM_TASKS": "2",
}


@pytest.mark.parametrize(
    ("options", "environment", "expected"),
    [
        ({}, {}, Nodes(1, 0, 8, None)),
        ({"nnodes": 1}, SLURM, Nodes(1, 0, 8, None)),
        ({}, {**SLURM, "SLURM_NNODES": "1", "SLURM_STEP_NUM_TASKS": "1"}, Nodes(1, 0, 8, None)),
        ({"nnodes": 4, "node_rank": 3, "rdzv_endpoint": "a:1"}, {}, Nodes(4, 3, 2, "a:1")),
        ({"nnodes": 2, "node_rank": 0, "rdzv_endpoint": "[fe80::1]:9"}, {}, Nodes(2, 0, 4, "[fe80::1]:9")),
        ({}, SLURM, Nodes(2, 1, 4, "gpu007:24567")),
        ({"rdzv_endpoint": "other:5"}, SLURM, Nodes(2, 1, 4, "other:5")),
    ],
)
def test_nodes(options: dict[str, Any], environment: dict[str, str], expected: Nodes) -> None:
    assert find_nodes(RunOptions(steps=1, **options), 8, environment) == expected


@pytest.mark.parametrize(
    ("options", "environment", "says"),
    [
        (
            {"nnodes": 3},
            {},
            [
                "nnodes=3 needs --node-rank (0 to 2)",
                "nnodes=3 needs --rdzv-endpoint HOST:PORT of node 0; ",
                "the plan's 8 ranks do not divide over 3 nodes; nnodes may be 1, 2, 4, 8",
            ],
        ),
        ({"nnodes": 2, "node_rank": 2, "rdzv_endpoint": "a:1"}, {}, ["node_rank=2 must be below nnodes=2"]),
        ({"nnodes": 2, "node_rank": 0, "rdzv_endpoint": "a"}, {}, ["HOST:PORT of node 0, not 'a'"]),
        ({"rdzv_endpoint": "a:1"}, {}, ["rdzv_endpoint=a:1 is given, but nnodes is 1"]),
        ({}, {**SLURM, "SLURM_STEP_NUM_TASKS": "8"}, ["SLURM started 8 tasks on 2 nodes"]),
        (
            {},
            {"SLURM_NNODES": "2"},
            [
                "SLURM_NNODES=2, but SLURM_JOB_NODELIST, which names node 0, is not set",
                "nnodes=2 needs --rdzv-endpoint HOST:PORT",
            ],
        ),
        ({}, {**SLURM, "SLURM_NNODES": "two"}, ["SLURM_NNODES='two' is not a number"]),
    ],
)
def test_wrong_nodes(options: dict[str, Any], environment: dict[str, str], says: list[str]) -> None:
    with pytest.raises(SeqplanError) as caught:
        find_nodes(RunOptions(steps=1, **options), 8, environment)
    for part in says:
        assert part in caught.value.message


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [  # the forms that `scontrol show hostnames` expands (SLURM's manual, "hostlist")
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[007-010,12],login1", "gpu007"),
        ("gpu[3,5-6]", "gpu3"),
        ("a1-ib[3]x[10-12]", "a1-ib3x10"),
        ("rack2-node[01-02].example.org", "rack2-node01.example.org"),
    ],
)
def test_first_host_of_a_slurm_list(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host


def test_a_place_that_cannot_be_written_stops_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a file, not a folder")
    with pytest.raises(SeqplanError, match=r"output_dir=.*text.txt cannot be written to \(File exists\)"):
        launch(fake_plan(2), [tmp_path / "text.txt"], RunOptions(steps=1, output_dir=tmp_path / "text.txt"))


def test_a_cpu_run_needs_the_memory_of_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = fake_plan(2)
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 2 * 2**30)
    host_memory.require_memory(plan, 2)
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 2**29)
    with pytest.raises(SeqplanError, match=r"2 ranks on this CPU need 0.6 GiB, .* but 0.5 GiB are free"):
        host_memory.require_memory(plan, 2)


def test_a_folder_too_deep_for_sockets_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_long() -> None:
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr("multiprocessing.forkserver.ensure_running", too_long)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(SeqplanError, match=r"^TMPDIR=.* is too long for a socket .* Set TMPDIR to a shorter"):
        launch_module._start_fork_server()
    assert signal.getsignal(signal.SIGINT) is handler


def on_two_nodes(plan: Plan) -> Plan:
    """The plan of so many ranks on two nodes."""
    each = plan.layout.world_size // 2
    return plan.model_copy(
        update={"cluster": plan.cluster.model_copy(update={"gpus_per_node": each, "num_nodes": 2})}
    )


def test_a_plan_for_gpus_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    gpus = fake_plan(8, device="H100-SXM", kind="cuda")
    with pytest.raises(SeqplanError, match=r"needs 4 GPUs on this node \(H100-SXM\), torch sees 2") as caught:
        choose_device(gpus, RunOptions(steps=1), 4)
    assert "--device cpu" in caught.value.hint
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 2**20)  # no place for it here
    with pytest.raises(SeqplanError, match=r"needs 8 GPUs on this node") as caught:
        choose_device(on_two_nodes(gpus), RunOptions(steps=1), 8)
    assert caught.value.hint == (
        "Start it on each of its 2 nodes with --nnodes 2, --node-rank and --rdzv-endpoint."
    )
    assert choose_device(gpus, RunOptions(steps=1), 2) == "cuda"
    assert choose_device(gpus, RunOptions(steps=1, device="cpu"), 4) == "cpu"
    assert choose_device(fake_plan(8), RunOptions(steps=1), 4) == "cpu"


@pytest.mark.parametrize(
    ("error", "kind"),
    [  # texts of torch 2.13 with gloo, TCPStore and NCCL
        (RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer"), "peer lost"),
        (RuntimeError("gloo/transport/tcp/pair.cc: Connection closed by peer [127.0.0.1]:4"), "peer lost"),
        (RuntimeError("[gloo/unbound_buffer.cc:78] Timed out waiting 6000ms for recv"), "peer silent"),
        (RuntimeError("NCCL watchdog: collective operation timeout"), "peer silent"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "own"),
        (ValueError("timeout of gloo"), "own"),
        (SeqplanError("x"), "user"),
        (FailedError("x"), "failed"),
    ],
)
def test_causes_and_consequences(error: Exception, kind: str) -> None:
    assert classify(error) == kind


def failed(folder: Path, rank: int, error: Exception) -> None:
    try:
        raise error
    except Exception as caught:
        record_failure(folder, rank, caught)


LOST = RuntimeError("gloo: Connection closed by peer")


def explain(folder: Path, rank: int, exit_code: int) -> str:
    return explain_failure(folder, rank, 4321, exit_code, world_size=4, timeout_s=30.0)


def test_a_signal_is_the_cause_of_lost_connections(tmp_path: Path) -> None:
    failed(tmp_path, 0, LOST)
    text = explain(tmp_path, 2, -9)
    assert text.startswith("rank 2 of 4 (pid 4321) was ended by signal 9 (SIGKILL)")
    assert "out of memory" in text
    assert "Traceback" not in text


def test_the_launcher_may_see_a_consequence_first(tmp_path: Path) -> None:
    failed(tmp_path, 0, LOST)
    failed(tmp_path, 3, ZeroDivisionError("by zero"))
    text = explain(tmp_path, 0, 1)
    assert text.startswith("rank 3 of 4 failed")
    assert "ZeroDivisionError: by zero" in text
    assert text.count("Traceback") == 1


def test_of_two_causes_the_earlier_is_told(tmp_path: Path) -> None:
    failed(tmp_path, 3, KeyError("first"))
    failed(tmp_path, 0, KeyError("second"))
    assert explain(tmp_path, 0, 1).startswith("rank 3 of 4 failed")


def test_a_peer_of_another_node_is_blamed_without_a_traceback(tmp_path: Path) -> None:
    failed(tmp_path, 1, LOST)
    text = explain(tmp_path, 1, 1)
    assert text.startswith("rank 1 of 4 lost its connection: a rank on another node has ended")
    assert "Traceback" not in text


def test_a_silent_peer_is_shown_where_it_was(tmp_path: Path) -> None:
    failed(tmp_path, 1, RuntimeError("gloo: Timed out waiting 30000ms for recv"))
    frame = '  File "x.py", line 3 in stuck\n'
    stack_file(tmp_path, 0).write_text(f"Current thread 0x1 (most recent call first):\n{frame}")
    stack_file(tmp_path, 1).write_text(frame)
    text = explain(tmp_path, 1, 1)
    assert text.startswith("rank 1 of 4 waited timeout_s=30 s for another rank in vain")
    assert 'rank 0 was at: File "x.py", line 3 in stuck' in text
    assert "rank 1 was at" not in text


def test_a_rank_that_leaves_nothing(tmp_path: Path) -> None:
    assert "ended with exit code 3 and left no traceback" in explain(tmp_path, 0, 3)


def test_a_wrong_input_keeps_its_hint(tmp_path: Path) -> None:
    failed(tmp_path, 2, SeqplanError("the file is gone.", "Put it back."))
    with pytest.raises(SeqplanError) as caught:
        explain(tmp_path, 0, 1)
    assert (caught.value.message, caught.value.hint) == ("rank 2: the file is gone.", "Put it back.")


def test_a_diverged_loss_is_one_line_but_no_wrong_input(tmp_path: Path) -> None:
    failed(tmp_path, 1, FailedError("The loss is nan.", "Lower learning_rate."))
    failed(tmp_path, 0, LOST)
    with pytest.raises(FailedError) as caught:
        explain(tmp_path, 0, 1)
    assert str(caught.value) == "rank 1: The loss is nan. Lower learning_rate."
    assert (caught.value.exit_status, SeqplanError("x").exit_status) == (1, 2)


@pytest.mark.parametrize("name", ["learning_rate", "timeout_s", "weight_decay", "clip_norm"])
def test_options_are_finite(name: str) -> None:
    with pytest.raises(ValidationError, match="finite number"):
        RunOptions.model_validate({"steps": 1, name: float("inf")})


def test_wrong_options_are_named_together() -> None:
    with pytest.raises(SeqplanError) as caught:
        RunOptions(steps=3, warmup_steps=4, learning_rate=1e-4, min_learning_rate=1e-3)
    assert "min_learning_rate=0.001 is above learning_rate=0.0001" in caught.value.message
    assert "warmup_steps=4 is more than steps=3" in caught.value.message


def test_options_are_json() -> None:
    assert json.loads(RunOptions(steps=3).model_dump_json())["steps"] == 3
