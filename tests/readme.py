"""What commands print in the README, made again by them: `python -m tests.readme` writes it into the file.

test_readme.py compares; this is what to run when the search answers otherwise than the README shows.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from string import Template
from typing import NamedTuple

README = Path(__file__).parent.parent / "README.md"

TRANSCRIPT = re.compile(r"^```\n\$ seqplan (suggest [^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""The fenced block of the showcase: its command, and what the command printed."""

WIDTH = "100"
"""Columns of the transcript."""

LIMITS_ROW = re.compile(r"^(\| [^|\n]+ \| `(--cluster [^`\n]+)` \|)([^|\n]*)\|([^|\n]*)\|$", re.MULTILINE)
"""A row of the table of `limits`: what it is called and its flags, then the answer of each model."""

MODELS = ("$BASE", "$LARGE")
"""Models of the columns, as the block above the table writes them."""

Run = Callable[[list[str]], str]
"""Words of a command -> what it prints."""


class LimitsRow(NamedTuple):
    """A row as the README has it."""

    head: str
    flags: str
    cells: tuple[str, ...]


def text() -> str:
    return README.read_text(encoding="utf-8")


def shown() -> tuple[list[str], str]:
    """The command of the README, in words, and the answer that it shows."""
    found = TRANSCRIPT.findall(text())
    assert len(found) == 1, "README.md shows one `$ seqplan suggest` transcript"
    return shlex.split(found[0][0]), found[0][1]


def limits_rows() -> list[LimitsRow]:
    """The rows of the table, with what stands in them."""
    return [
        LimitsRow(head, flags, tuple(cell.strip() for cell in cells))
        for head, flags, *cells in LIMITS_ROW.findall(text())
    ]


def variables() -> dict[str, str]:
    """What the README's shell variables hold."""
    return dict(re.findall(r'^([A-Z]+)="([^"\n]*)"$', text(), re.MULTILINE))


def words(command: str) -> list[str]:
    """A command of the README in words, its variables filled in."""
    return shlex.split(Template(command).substitute(variables()))


def longest(flags: str, model: str, run: Run) -> str:
    """A cell: how far the last family of --family goes; against tp, where that is asked beside it."""
    typed = ["limits", *words(model), *words(flags)]
    best = json.loads(run([*typed, "--json"]))["best"]
    family = typed[typed.index("--family") + 1].split(",")[-1]
    (found,) = [each for each in best if each["family"] == family]
    alone = family == "tp" or found["times_tp"] is None
    return f"{found['value']:,}" + ("" if alone else f" ({found['times_tp']:.1f} x tp)")


def printed(words: list[str]) -> str:
    """What the command prints now, run in an empty folder."""
    environment = os.environ | {"COLUMNS": WIDTH, "PYTHONPATH": str(README.parent), "PYTHONUTF8": "1"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "seqplan", *words],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stdout
    return done.stdout


def main() -> None:
    typed, _ = shown()
    block = f"```\n$ seqplan {shlex.join(typed)}\n{printed(typed)}```"
    again = TRANSCRIPT.sub(lambda _: block, text())
    again = LIMITS_ROW.sub(
        lambda row: f"{row[1]} {' | '.join(longest(row[2], model, printed) for model in MODELS)} |", again
    )
    README.write_text(again, encoding="utf-8")


if __name__ == "__main__":
    main()
