"""What a run cannot write is one line: a full disk, an output folder that somebody removes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from seqplan.planner.errors import FailedError
from seqplan.runtime.launching.failures import record_failure
from seqplan.runtime.metrics import MetricsFile, RunSummary, StepMetrics, write_summary
from tests.runtime.fake_run import fake_run
from tests.runtime.test_faults import _environment, _own_fork_server, assert_gone, ranks_of

__all__ = ["_environment", "_own_fork_server"]  # fixtures of every test here too

FULL = Path("/dev/full")
"""Linux's device that is always full."""
METRICS = StepMetrics(
    step=1,
    loss=2.5,
    grad_norm=1.0,
    lr=0.1,
    tokens=64,
    loss_tokens=60,
    step_time_s=0.5,
    tokens_per_s=128.0,
    mfu=None,
    peak_memory_bytes=None,
)
SUMMARY = RunSummary(
    steps=1,
    first_loss=2.5,
    last_loss=2.5,
    tokens_per_s=None,
    mfu=None,
    memory_kind="tensors",
    stages=(),
    output_dir="x",
)


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
def test_a_full_disk_is_told_once(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    with FULL.open("wb", buffering=0) as full:
        os.dup2(full.fileno(), file._file.fileno())
    with pytest.raises(FailedError, match=r"metrics\.jsonl cannot be written \(No space left on device\)\."):
        file.write(METRICS)
    file.close()  # does not fail once more
    with pytest.raises(FailedError, match=r"/dev/full cannot be written \(No space left on device\)\."):
        write_summary(SUMMARY, FULL)


def test_a_folder_that_was_removed_is_told_at_the_next_step(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "run" / "metrics.jsonl")
    file.write(METRICS)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(
        FailedError, match=r"metrics\.jsonl cannot be written \(No such file or directory\)\."
    ):
        file.write(METRICS)
    file.close()
    with pytest.raises(FailedError, match=r"summary\.json cannot be written \(No such file or directory\)\."):
        write_summary(SUMMARY, tmp_path / "run" / "summary.json")


def test_a_reason_that_cannot_be_written_down_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record_failure(tmp_path / "gone", 1, ValueError("no such thing")).kind == "own"
    assert capsys.readouterr().err == (
        f"rank 1: ValueError: no such thing ({tmp_path}/gone cannot be written: No such file or directory)\n"
    )


@pytest.mark.ranks
@pytest.mark.timeout(120)
def test_it_ends_the_run_with_all_ranks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("short")
    with pytest.raises(FailedError, match=r"^rank 0: \S+metrics\.jsonl cannot be written \(No such file"):
        fake_run("unlisted", 2, tmp_path)
    assert_gone(ranks_of(tmp_path))
    # And a text shorter than a sequence (5 bytes and the end of the file) is told, by one rank.
    assert (
        capfd.readouterr().err.count("warning: the data's 6 tokens do not fill one sequence of seq_len=16")
        == 1
    )
