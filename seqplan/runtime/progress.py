"""What rank 0 says while it trains, on stderr, and the table at the end of a run.

On a terminal one line that is redrawn (step, loss, tokens/s, MFU where the peak is known, time left);
elsewhere, as in a job's log file, one plain line every `log_every` steps.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from seqplan.runtime.metrics import RunSummary, StepMetrics

_GIB = 1 << 30
_MIB = 1 << 20


def describe(metrics: StepMetrics) -> str:
    """loss 2.3456 | 12,345 tokens/s | MFU 41.2 %"""
    parts = [f"loss {metrics.loss:.4f}", f"{metrics.tokens_per_s:,.0f} tokens/s"]
    if metrics.mfu is not None:
        parts.append(f"MFU {100 * metrics.mfu:.1f} %")
    return " | ".join(parts)


class ProgressLine:
    """Shows each step; a context manager, because a terminal has to be put back in order."""

    def __init__(self, steps: int, log_every: int, console: Console | None = None) -> None:
        self.steps = steps
        self.log_every = log_every
        self.console = console or Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._seconds: deque[float] = deque(maxlen=50)
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(bar_width=20),
                TextColumn("{task.description}"),
                TextColumn("| left"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self._task = self._bar.add_task("starting", total=steps)

    def __enter__(self) -> ProgressLine:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, metrics: StepMetrics) -> None:
        self._seconds.append(metrics.step_time_s)
        if self._bar is not None:
            self._bar.update(self._task, completed=metrics.step, description=describe(metrics))
        elif metrics.step % self.log_every == 0 or metrics.step in (1, self.steps):
            left_s = median(self._seconds) * (self.steps - metrics.step)
            line = f"step {metrics.step}/{self.steps} | {describe(metrics)} | {left_s:.0f} s left"
            self.console.print(line, soft_wrap=True)


def _bytes(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / _GIB:.2f} GiB" if value >= _GIB else f"{value / _MIB:.1f} MiB"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f} s" if value >= 1 else f"{1e3 * value:.1f} ms"


def _ratio(measured: float | None, planned: float | None) -> str:
    return "-" if measured is None or planned is None or planned <= 0 else f"{measured / planned:.2f}"


def summary_table(summary: RunSummary) -> Table:
    """Planned beside measured, a row a stage: its fullest rank and its slowest rank's median step."""
    measured_by = {
        "allocated": "memory: most bytes that the GPU's allocator held for tensors",
        "tensors": "memory: most bytes of live tensors during one step (gloo lets go of\nwhat it has sent "
        "late: some MiB more with tp, and with zero 2 or 3)",
    }
    other = f"\nstep: planned for {summary.planned_for}, not for this device" if summary.planned_for else ""
    table = Table(
        title=f"{summary.steps} steps, loss {summary.first_loss:.4f} to {summary.last_loss:.4f}",
        caption=f"{measured_by[summary.memory_kind]}\nstep: the slowest rank's median after the first two\n"
        f"rank 0, every step: {summary.output_dir}/metrics.jsonl{other}",
    )
    table.add_column("stage", justify="right")
    for what in ("memory", "step"):
        for column in (f"{what},\nplanned", f"{what},\nmeasured", "measured /\nplanned"):
            table.add_column(column, justify="right")
    for stage in summary.stages:
        table.add_row(
            str(stage.stage),
            _bytes(stage.planned_memory_bytes),
            _bytes(stage.measured_memory_bytes),
            _ratio(stage.measured_memory_bytes, stage.planned_memory_bytes),
            _seconds(stage.planned_step_time_s),
            _seconds(stage.measured_step_time_s),
            _ratio(stage.measured_step_time_s, stage.planned_step_time_s),
        )
    return table
