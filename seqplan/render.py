"""What every printed answer shares: the console, JSON, and the one place that rounds.

Results go to stdout, talk and warnings about the input to stderr. Without a terminal rich would
assume 80 columns and shorten cells; here a pipe gets 120 (or COLUMNS), and no console is narrower
than the narrowest table, so no column is ever lost. Colours are rich's own choice: none in a pipe.
rich is imported when something is printed, never before: `--json` does not need it.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from seqplan.planner.results import JSON_SCHEMA

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console, Group, RenderableType
    from rich.text import Text

    from seqplan.planner.model_spec import ModelSpec

NARROWEST = 80
PIPE_WIDTH = 120
ROOMY = 100
BAR_CELLS = 24


def width() -> int:
    """Columns to print in: the terminal's (or COLUMNS), PIPE_WIDTH without a terminal, at least NARROWEST."""
    from rich.console import Console

    plain = Console()
    known = plain.is_terminal or "COLUMNS" in os.environ
    return max(plain.width if known else PIPE_WIDTH, NARROWEST)


def console() -> Console:
    """stdout; text is printed as it is (no markup, no highlighting)."""
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False, width=width())


def show(parts: Iterable[RenderableType | None]) -> None:
    """Print the parts of one answer, a blank line between them; None is left out."""
    out = console()
    with out.capture() as captured:
        for number, part in enumerate(part for part in parts if part is not None):
            if number:
                out.print()
            out.print(part)
    # rich fills every line of a table with spaces, which a file or a pasted answer should not carry.
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def show_json(answer: BaseModel | dict[str, Any]) -> None:
    """One JSON object on stdout, its schema first."""
    fields = answer if isinstance(answer, dict) else answer.model_dump(mode="json", by_alias=True)
    sys.stdout.write(json.dumps({"schema": JSON_SCHEMA, **fields}) + "\n")


def model_counts(model: ModelSpec) -> dict[str, Any]:
    """The parameter counts of a model, as the JSON contract names them."""
    return {
        "name": model.name,
        "architecture": model.architecture,
        "parameters": model.parameters(),
        "parameters_without_head": model.parameters_without_head(),
    }


def tell(kind: str, messages: Iterable[str]) -> None:
    """Talk on stderr, one line a message: `note: ...`, `warning: ...`."""
    for message in messages:
        print(f"{kind}: {message}", file=sys.stderr)


def gib(size_bytes: float) -> str:
    """Bytes as GiB: two decimals below 100, one above."""
    value = size_bytes / 2**30
    return f"{value:.2f}" if abs(value) < 99.995 else f"{value:,.1f}"


def size(size_bytes: float) -> str:
    """Bytes with their unit: GiB, and MiB where GiB would show no figures; never zero for some."""
    if 0 < size_bytes < 0.05 * 2**20:
        return "< 0.1 MiB"
    return f"{gib(size_bytes)} GiB" if abs(size_bytes) >= 0.1 * 2**30 else f"{size_bytes / 2**20:.1f} MiB"


def duration(seconds: float) -> str:
    """Seconds with three figures: 412 us, 35.1 ms, 4.21 s, 1,240 s."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= 0.9995 * scale or unit == "us":
            value = seconds / scale
            decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
            return f"{value:,.{decimals}f} {unit}"
    raise AssertionError("the loop returns")


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def count(number: float) -> str:
    """A whole number with thousands separated."""
    return f"{number:,.0f}"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def text(content: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(content, style=style)


def block(title: str, lines: Iterable[str], style: str = "bold", bullet: str = " ") -> Group:
    """A heading with indented lines, each wrapped under itself."""
    from rich.console import Group
    from rich.table import Table

    body = Table(box=None, show_header=False, pad_edge=False, padding=0)
    body.add_column(no_wrap=True)
    body.add_column(overflow="fold")
    for line in lines:
        body.add_row(text(f"{bullet} "), text(line))
    return Group(text(title, style), body)


def group(*parts: RenderableType) -> Group:
    """Parts that belong together, without a line between them."""
    from rich.console import Group

    return Group(*parts)


def listing(title: str, lines: Sequence[str], style: str = "bold") -> Group | None:
    """A heading with one entry a line; None where there is nothing to say."""
    return block(title, lines, style, bullet=" -") if lines else None


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str] = ()
) -> Group:
    """A table without lines; numbers stand to the right, the columns named in `left` to the left.

    Only a left column may wrap (to a second line of its cell); figures never do.
    """
    from rich.box import Box
    from rich.console import Group
    from rich.table import Table

    rule = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
    gap = 1 if width() >= ROOMY else 0
    result = Table(box=rule, show_edge=False, pad_edge=False, padding=(0, gap, 0, 0))
    for name in columns:
        wraps = name in left
        result.add_column(name, justify="left" if wraps else "right", no_wrap=not wraps, overflow="fold")
    for row in rows:
        result.add_row(*(text(cell) for cell in row))
    return Group(text(title, "bold"), result)


def bars(title: str, parts: Sequence[tuple[str, float, str]], whole: float) -> Group:
    """One line for each (name, size, printed size): a bar as long as its share of `whole`, and the share."""
    from rich.console import Group
    from rich.table import Table

    cell = "\u2588" if (sys.stdout.encoding or "").lower().startswith("utf") else "#"
    result = Table(box=None, show_header=False, pad_edge=False)
    for justify in ("left", "right", "right", "left"):
        result.add_column(justify=justify, no_wrap=True)
    for name, size, printed in parts:
        share = size / whole if whole > 0 else 0.0
        length = min(BAR_CELLS, math.floor(share * BAR_CELLS + 0.5))
        result.add_row(text(f"  {name}"), text(printed), text(percent(share)), text(cell * length, "cyan"))
    return Group(text(title, "bold"), result)
