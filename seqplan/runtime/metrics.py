"""Measurements of a run: one JSON line a step, the peak memory of a rank, and the run's summary.

Memory is compared with the plan as bytes of tensors. A GPU's allocator counts them; a CPU's does not, so
one step runs under torch's profiler, whose memory events are the allocations and frees of tensors
(measured with torch 2.13: 20 % slower, so one step only). The resident set of a CPU process says little:
it holds torch itself, and pages that the C library keeps after a free.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from seqplan.planner.calibration.run_records import RunHeader
from seqplan.planner.errors import FailedError
from seqplan.planner.spec import Spec

T = TypeVar("T")

UNTIMED_STEPS = 2
"""The first steps are left out of the step time: they build buffers and optimizer states (step 1), and a
CPU's memory is measured under the profiler (step 2)."""


class StepMetrics(Spec):
    """One line of metrics.jsonl. Steps count from 1."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    """Tokens of the global batch; `loss_tokens` of them were predicted."""
    loss_tokens: int
    step_time_s: float
    tokens_per_s: float
    mfu: float | None
    peak_memory_bytes: int | None
    """Of rank 0, up to this step; None on a CPU before the step that is measured."""
    run: RunHeader | None = None
    """In the first line only: what was run, so that the file needs nothing beside it (`seqplan fit`)."""


class RankReport(Spec):
    """What one rank measured."""

    rank: int
    stage: int
    peak_memory_bytes: int | None
    step_time_s: float | None


class StageSummary(Spec):
    """Planned and measured, for the fullest rank of one pipeline stage."""

    stage: int
    planned_memory_bytes: float
    measured_memory_bytes: int | None
    planned_step_time_s: float | None
    """None where the run has another device than the plan."""
    measured_step_time_s: float | None


class RunSummary(Spec):
    """What a finished run reports."""

    steps: int
    first_loss: float
    last_loss: float
    tokens_per_s: float | None
    mfu: float | None
    memory_kind: Literal["allocated", "tensors"]
    stages: tuple[StageSummary, ...]
    output_dir: str
    planned_for: str | None = None
    """The plan's device, where the run has another."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system says of a file that cannot be written, as one line: a full disk is no fault of ours."""
    try:
        yield
    except OSError as error:
        raise FailedError(
            f"{path} cannot be written ({error.strerror or error}).",
            "Make room there and leave the folder in place, or choose another --output-dir.",
        ) from None


class MetricsFile:
    """metrics.jsonl of one run, one flushed line a step. An earlier run's becomes metrics.1.jsonl, ..."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                number = 1
                while (earlier := path.with_suffix(f".{number}{path.suffix}")).exists():
                    number += 1
                path.rename(earlier)
            # Without a buffer: what a full disk did not take would fail once more when it is closed.
            self._file = path.open("wb", buffering=0)

    def write(self, metrics: StepMetrics) -> None:
        # A loss that is not finite becomes null: NaN is not JSON.
        left_out = {"run"} if metrics.run is None else None
        line = memoryview(metrics.model_dump_json(by_alias=True, exclude=left_out).encode() + b"\n")
        with writing(self.path):
            self.path.stat()  # an open file takes lines also after its folder was removed
            while line:
                line = line[self._file.write(line) :]

    def close(self) -> None:
        with writing(self.path):
            self._file.close()


def live_tensor_bytes() -> int:
    """Bytes of the distinct storages of all CPU tensors that Python can see, gradients included."""
    sizes: dict[int, int] = {}
    for thing in gc.get_objects():
        if not issubclass(type(thing), Tensor):  # isinstance would ask lazy modules for their class
            continue
        for tensor in (thing, thing.grad if thing.is_leaf else None):
            local: Any = getattr(tensor, "_local_tensor", tensor)
            if local is None or local.device.type != "cpu" or local.layout is not torch.strided:
                continue
            storage = local.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def measure_peak_bytes(fn: Callable[[], T]) -> tuple[T, int]:
    """Run `fn` on a CPU; its result and the largest number of bytes that tensors took meanwhile.

    Tensors alive at the start, plus the running sum of the profiler's allocations and frees. A free of a
    tensor from before the start is not among these events, so the step has to begin without the gradients
    of the last one (else the result is an upper bound).
    """
    gc.collect()
    before = live_tensor_bytes()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = fn()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    now = peak = before
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return result, peak


def write_summary(summary: RunSummary, path: Path) -> None:
    with writing(path):
        path.write_text(json.dumps(summary.model_dump(mode="json"), indent=2) + "\n", encoding="utf-8")
