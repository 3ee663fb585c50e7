"""Whether this machine's memory holds the ranks that a CPU run would start: asked before any is started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from seqplan.planner.errors import SeqplanError

if TYPE_CHECKING:
    from seqplan.planner.plan import Plan

_MEMINFO = Path("/proc/meminfo")
_GIB = 1 << 30
TORCH_BYTES = 300 * 1024**2
"""A gloo rank before it builds anything: 293 MiB resident (measured, torch 2.13 on Linux x86-64)."""


def available_bytes() -> int:
    """Memory that new processes can have: Linux's own estimate, else all of it."""
    try:
        for line in _MEMINFO.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cpu_holds(plan: Plan, local_world_size: int) -> bool:
    """Whether the planned tensors of so many ranks find room in the memory that is free."""
    return local_world_size * _rank_bytes(plan) <= available_bytes()


def _rank_bytes(plan: Plan) -> float:
    return plan.estimate.memory.allocated_bytes + TORCH_BYTES


def require_memory(plan: Plan, local_world_size: int) -> None:
    """SeqplanError where the planned tensors of this node's ranks are more than the memory that is free."""
    per_rank = _rank_bytes(plan)
    needed, free = local_world_size * per_rank, available_bytes()
    if needed > free:
        raise SeqplanError(
            f"{local_world_size} ranks on this CPU need {needed / _GIB:.1f} GiB,"
            f" {per_rank / _GIB:.1f} GiB each, but {free / _GIB:.1f} GiB are free.",
            "Run the plan on the cluster that it was made for, or plan a smaller model or batch for local.",
        )
