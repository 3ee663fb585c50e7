"""The chart of `limits`: values over devices, one line a family, as an SVG or PNG file.

matplotlib is an optional extra: only this file imports it, and says how to get it where it is missing.
"""

from __future__ import annotations

from pathlib import Path

from seqplan.planner.errors import SeqplanError
from seqplan.planner.limits import NAMES, Limits

SUFFIXES = (".svg", ".png")

STYLES = ("o-", "s--", "^-.", "D:")
"""Lines often lie upon one another: where tp and sp are equally good, or all is sp x pp."""


def check_plot_path(path: Path) -> None:
    """Refuse a chart that could not be written, before anything is searched."""
    if path.suffix.lower() not in SUFFIXES:
        raise SeqplanError(f"--plot {path} is neither .svg nor .png.", "Name the file FILE.svg or FILE.png.")
    if not path.absolute().parent.is_dir():
        raise SeqplanError(f"--plot {path}: no folder {path.parent}.", "Make it, or name another.")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise SeqplanError(
            "--plot needs matplotlib, which is not installed.",
            "Install the extra `plot`: pip install 'seqplan[plot]'.",
        ) from None


def plot_limits(answer: Limits, path: Path) -> None:
    """Draw the values of every family; both axes logarithmic, so that a straight line is a power."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    families = dict.fromkeys(limit.family for limit in answer.limits)
    for number, family in enumerate(families):
        points = [
            (limit.gpus, limit.value)
            for limit in answer.limits
            if limit.family == family and limit.value is not None
        ]
        if points:
            devices, values = zip(*points, strict=True)
            axes.plot(devices, values, STYLES[number % len(STYLES)], label=family)
    shown = sorted({limit.gpus for limit in answer.limits})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xticks(shown, [str(gpus) for gpus in shown])
    axes.minorticks_off()
    axes.set_xlabel(f"devices of {answer.cluster}")
    tokens = answer.searched == "seq_len"
    axes.set_ylabel("tokens of a sequence" if tokens else "sequences of a batch")
    given = f"batch {answer.given:,}" if tokens else f"{answer.given:,} tokens"
    axes.set_title(f"{NAMES[answer.searched]} of {answer.model}, {given}, {answer.implementation}")
    axes.grid(visible=True, alpha=0.3)
    if answer.best:
        axes.legend(title="layouts")
    with rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(path)
