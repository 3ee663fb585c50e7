"""What the profile `local` has to ask the machine for: cores, memory, and whether bf16 is fast."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqplan.planner.reading.quantity import Quantity

SOURCE = "this machine, read at load"

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_CPU_FLAGS = Path("/proc/cpuinfo")
_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""CPU flags with which torch's bf16 matmul is fast; without them it runs many times slower than fp32."""


def core_count() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """Physical memory, or the container's limit where that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read(_CGROUP_LIMIT).strip()
    return min(physical, int(limit)) if limit.isdigit() else physical


def has_fast_bf16() -> bool:
    """Whether the CPU names an instruction set for bf16; where it says nothing, not."""
    for line in _read(_CPU_FLAGS).splitlines():
        if line.lower().startswith(("flags", "features")):
            return bool(_BF16_FLAGS & set(line.split()))
    return False


def cpu_device(profile: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """The CPU profile on this machine, its memory shared by `ranks` ranks."""
    device = {**profile, "memory_bytes": Quantity(memory_bytes() / ranks, SOURCE + ", shared by its ranks")}
    if not has_fast_bf16():
        for table in ("peak_flops_per_s", "attention_kernels"):
            device[table] = {dtype: value for dtype, value in profile[table].items() if dtype != "bf16"}
    return device


def local_cluster(
    profile: Mapping[str, Any], device: Mapping[str, Any], ranks: int | None = None
) -> dict[str, Any]:
    """The profile `local` filled in: one rank a core, until `ranks` or --gpus says another number."""
    cores = core_count()
    ranks = cores if ranks is None else ranks
    return {**profile, "device": cpu_device(device, ranks), "gpus_per_node": ranks, "cores_per_node": cores}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
