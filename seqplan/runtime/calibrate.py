"""Measures this machine for a hardware profile: computation, memory and links, all ranks at work at once.

The same on a CPU with gloo and on GPUs with NCCL, on this machine's own ranks or as one rank of a job that
torchrun started. The time asked for is what the ranks take once they are there; it is shared out over what
there is to measure, so a longer one means longer windows, not more points.
"""

from __future__ import annotations

import os
import platform
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from seqplan.planner.calibration.samples import Measurements
from seqplan.planner.errors import SeqplanError
from seqplan.runtime.calibration.calibrate_ranks import Progress, prepare_device, run_on_ranks
from seqplan.runtime.calibration.calibrate_sizes import SIZES, Sizes
from seqplan.runtime.launching.host_memory import TORCH_BYTES

if TYPE_CHECKING:
    import torch

    from seqplan.runtime.calibration.calibrate_timing import Task

DeviceType = Literal["auto", "cpu", "cuda"]

STARTING_S = 60.0
"""Beyond the time asked for: what ranks may take to start."""

MOST_RANKS = 256
"""Ranks of one machine beyond which a number is a slip."""


def measure(
    nproc: int | None, device: DeviceType, seconds: float, progress: Progress, sizes: Sizes | None = None
) -> Measurements | None:
    """This machine's measurements; None on all ranks of a torchrun job but the first."""
    device_type = _device_type(device)
    sizes = sizes or SIZES[device_type]
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return _inside_job(nproc, device_type, seconds, progress, sizes)
    ranks = _own_ranks(device_type) if nproc is None else nproc
    _check_ranks(ranks, device_type)
    limit_s = 4.0 * seconds + STARTING_S
    answer = run_on_ranks(ranks, device_type, measure_rank, (ranks, seconds, sizes), progress, limit_s)
    assert isinstance(answer, Measurements)
    return answer


def _inside_job(
    nproc: int | None, device_type: str, seconds: float, progress: Progress, sizes: Sizes
) -> Measurements | None:
    """As one rank of a job."""
    import torch.distributed as dist

    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if nproc not in (None, local):
        raise SeqplanError(
            f"--nproc {nproc}, but the launcher started {local} ranks on this node.", "Leave --nproc out."
        )
    device = prepare_device(device_type, int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(
        "nccl" if device_type == "cuda" else "gloo", timeout=timedelta(seconds=4.0 * seconds + STARTING_S)
    )
    first = dist.get_rank() == 0
    measured = measure_rank(device, progress if first else None, local, seconds, sizes)
    dist.barrier()
    dist.destroy_process_group()
    return measured if first else None


def _device_type(device: DeviceType) -> str:
    if device == "cpu":
        return device
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise SeqplanError("--device cuda, but torch sees no GPU here.", "Use --device cpu.")
    return device


def _own_ranks(device_type: str) -> int:
    import torch

    return torch.cuda.device_count() if device_type == "cuda" else _cores()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_ranks(ranks: int, device_type: str) -> None:
    found = _own_ranks("cuda") if device_type == "cuda" else MOST_RANKS
    if not 1 <= ranks <= found:
        what = "GPUs that torch sees" if device_type == "cuda" else "ranks"
        raise SeqplanError(f"--nproc {ranks} must be from 1 to {found} {what}.")


def measure_rank(
    device: torch.device, report: Progress | None, ranks_per_node: int, seconds: float, sizes: Sizes
) -> Measurements:
    """All measurements on this rank; the same numbers on every rank."""
    from seqplan.runtime.calibration.calibrate_timing import time_within

    started_s = time.perf_counter()
    calibration = Calibration(device, ranks_per_node, sizes)
    time_within(calibration.tasks, device, seconds, sizes.rounds, report, started_s)
    return calibration.measurements()


class Calibration:
    """What one rank measures. Every rank makes one, and the tasks are timed by all together."""

    def __init__(self, device: torch.device, ranks_per_node: int, sizes: Sizes) -> None:
        from seqplan.runtime.calibration import calibrate_compute as compute
        from seqplan.runtime.calibration.calibrate_layer import Launches, Traffic
        from seqplan.runtime.calibration.calibrate_links import Transfers, link_groups

        self.device, self.ranks_per_node, self.sizes = device, ranks_per_node, sizes
        self.kernels = kernels = compute.usable_kernels(device)
        # A GPU trains in bf16, where bytes are all that counts; a CPU widens bf16 for every operation.
        between = list(kernels) if device.type == "cpu" else list(kernels)[-1:]  # fp32 comes first
        self.traffic = [Traffic(device, dtype, sizes) for dtype in between]
        self.matmuls = [compute.Matmuls(device, dtype, sizes) for dtype in kernels]
        self.attention = [
            compute.BlockAttention(device, dtype, usable[0], sizes) for dtype, usable in kernels.items()
        ]
        self.copies, self.launches = compute.Copies(device, sizes), Launches(device)
        self.transfers = [Transfers(device, link, sizes) for link in link_groups(ranks_per_node)]
        parts: list[Any] = [*self.matmuls, *self.attention, self.copies, *self.traffic, self.launches]
        self.tasks: list[Task] = [task for part in [*parts, *self.transfers] for task in part.tasks]

    def window_s(self, seconds: float) -> float:
        """Of one task in one round, so that all windows take about `seconds`."""
        from seqplan.runtime.calibration.calibrate_timing import window_within

        return window_within(seconds / self.sizes.rounds, [0.0] * len(self.tasks))

    def measurements(self) -> Measurements:
        """When the tasks have been timed."""
        import torch
        import torch.distributed as dist

        return Measurements(
            **_machine(self.device, self.ranks_per_node),
            ranks_per_node=self.ranks_per_node,
            nodes=dist.get_world_size() // self.ranks_per_node,
            kernels=dict(self.kernels),
            matmuls=tuple(sample for part in self.matmuls for sample in part.samples()),
            attention=tuple(sample for part in self.attention for sample in part.samples()),
            traffic=(*self.copies.samples(), *(each for part in self.traffic for each in part.samples())),
            launch_s=self.launches.launch_s(),
            transfers=tuple(sample for part in self.transfers for sample in part.samples()),
            repeats=len(self.tasks[0].means_s),
            date=time.strftime("%Y-%m-%d"),
            software=f"torch {torch.__version__}",
        )


def _machine(device: torch.device, ranks_per_node: int) -> dict[str, Any]:
    """What the device is, and its memory."""
    import torch

    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        rocm = torch.version.hip is not None
        free, total = torch.cuda.mem_get_info(device)
        return {
            "device_kind": "rocm" if rocm else "cuda",
            "device_name": found.name,
            "architecture": found.gcnArchName if rocm else f"sm_{found.major}{found.minor}",
            "memory_bytes": float(total),
            "context_bytes": float(max(0, total - free - torch.cuda.memory_reserved(device))),
            "cores_per_node": None,
        }
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "device_kind": "cpu",
        "device_name": "measured-cpu",
        "architecture": platform.machine().replace("_", "-"),
        "memory_bytes": float(total / ranks_per_node),
        "context_bytes": float(TORCH_BYTES),
        "cores_per_node": _cores(),
    }
