"""The progress bar of a measurement, on stderr and in a terminal only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from seqplan.runtime.calibration.calibrate_ranks import Progress as Report


@contextmanager
def progress_bar(title: str) -> Iterator[Report]:
    """A function that takes what is measured now and the share that is done."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda what, share: None
        return
    bar = Progress(
        TextColumn(title),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
    )
    with bar:
        task = bar.add_task("starting ranks", total=1.0)
        yield lambda what, share: bar.update(task, completed=share, description=what)
