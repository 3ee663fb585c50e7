"""What is said when a run fails: which rank was first, how it ended, its traceback; once.

When one rank ends, its neighbours fail too, a moment later, with errors about their connections. Each
rank writes down what happened to it (rank-N.json in a folder of the run); these records, in order of
time, and the exit code that the launcher saw, tell the cause from the consequences.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Literal

from seqplan.planner.errors import FailedError, SeqplanError
from seqplan.planner.spec import Spec

Kind = Literal["user", "failed", "own", "peer lost", "peer silent"]
"""A wrong input; what went wrong with right ones (a loss that is not finite, a full disk); a fault of this
rank; another rank that ended; another one that did not answer in time."""

_LOST = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "socket closed",
    "remote process",
)
_SILENT = ("timed out", "timeout")
_TRANSPORT = ("gloo", "nccl", "tcpstore", "connection", "collective")


class FailureRecord(Spec):
    """What one rank wrote down before it ended."""

    rank: int
    pid: int
    time_ns: int
    kind: Kind
    error: str
    hint: str = ""
    traceback: str


def classify(error: BaseException) -> Kind:
    """Whether an exception of a rank is its own, or only says that another rank ended or hangs.

    torch raises plain RuntimeErrors for gloo, so the text has to be read (torch 2.13).
    """
    if isinstance(error, SeqplanError):
        return "failed" if isinstance(error, FailedError) else "user"
    text = str(error).lower()
    if isinstance(error, RuntimeError) and any(word in text for word in _TRANSPORT):
        if any(word in text for word in _LOST):
            return "peer lost"
        if any(word in text for word in _SILENT):
            return "peer silent"
    return "own"


def record_failure(folder: Path, rank: int, error: BaseException) -> FailureRecord:
    """Write the record of this rank; called inside `except`."""
    message, hint = (error.message, error.hint) if isinstance(error, SeqplanError) else (str(error), "")
    record = FailureRecord(
        rank=rank,
        pid=os.getpid(),
        time_ns=time.time_ns(),
        kind=classify(error),
        error=message if isinstance(error, SeqplanError) else f"{type(error).__name__}: {message}",
        hint=hint,
        traceback="".join(traceback.format_exception(error)),
    )
    unfinished = folder / f"rank-{rank}.unfinished"
    try:
        unfinished.write_text(record.model_dump_json(), encoding="utf-8")
        unfinished.replace(folder / f"rank-{rank}.json")
    except OSError as full:  # the launcher can say no more than that this rank has ended
        print(f"rank {rank}: {record.error} ({folder} cannot be written: {full.strerror})", file=sys.stderr)
    return record


def stack_file(folder: Path, rank: int) -> Path:
    """Where a rank's stack is written when it is told to end."""
    return folder / f"rank-{rank}.stack"


def read_records(folder: Path) -> list[FailureRecord]:
    """All records, causes before consequences, then in order of time."""
    records = [
        FailureRecord(**json.loads(path.read_text(encoding="utf-8"))) for path in folder.glob("rank-*.json")
    ]
    return sorted(records, key=lambda record: (record.kind.startswith("peer"), record.time_ns))


def explain_failure(
    folder: Path, rank: int, pid: int, exit_code: int, world_size: int, timeout_s: float
) -> str:
    """The block for the user. `rank`, `pid` and `exit_code` are what the launcher saw first.

    Raises SeqplanError where the cause is a wrong input or (FailedError) needs none of our lines to explain
    it: one line, not a traceback.
    """
    records = read_records(folder)
    died_without_word = exit_code < 0 or all(record.rank != rank for record in records)
    if died_without_word and not any(record.kind in ("user", "failed", "own") for record in records):
        return _died(rank, pid, exit_code, world_size)
    cause = records[0]
    if cause.kind in ("user", "failed"):
        error = FailedError if cause.kind == "failed" else SeqplanError
        raise error(f"rank {cause.rank}: {cause.error}", cause.hint)
    if cause.kind == "peer lost":  # its traceback says nothing: the cause stands in the other node's output
        return (
            f"rank {cause.rank} of {world_size} lost its connection: a rank on another node has ended."
            f" ({cause.error})"
        )
    title = f"rank {cause.rank} of {world_size} failed (pid {cause.pid}): {cause.error}"
    others = ""
    if cause.kind == "peer silent":
        title = f"rank {cause.rank} of {world_size} waited timeout_s={timeout_s:g} s for another rank in vain"
        others = _where_others_were(folder, {record.rank for record in records})
    return f"{title}\n{_indent(cause.traceback)}{others}"


def _died(rank: int, pid: int, exit_code: int, world_size: int) -> str:
    if exit_code >= 0:
        return (
            f"rank {rank} of {world_size} (pid {pid}) ended with exit code {exit_code} and left no traceback"
        )
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = "unknown"
    text = f"rank {rank} of {world_size} (pid {pid}) was ended by signal {-exit_code} ({name})"
    if name == "SIGKILL":
        text += ": somebody's kill -9, or the system was out of memory (see dmesg)"
    return text


def _where_others_were(folder: Path, heard: set[int]) -> str:
    """Innermost frames of the ranks that raised nothing: the one that hangs is among them."""
    text = ""
    for path in sorted(folder.glob("rank-*.stack")):
        rank = int(path.stem.removeprefix("rank-"))
        frames = [line.strip() for line in path.read_text(errors="replace").splitlines() if "File" in line]
        if rank not in heard and frames:
            text += f"  rank {rank} was at: {'; called from '.join(frames[:3])}\n"
    return text


def _indent(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.rstrip().splitlines())
