"""The README's transcript, made again by its own command: `python -m tests.readme` writes it into the file.

test_readme.py compares; this is what to run when the search answers otherwise than the README shows.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"

TRANSCRIPT = re.compile(r"^```\n\$ seqplan (suggest [^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""The fenced block of the showcase: its command, and what the command printed."""

WIDTH = "100"
"""Columns of the transcript."""


def shown() -> tuple[list[str], str]:
    """The command of the README, in words, and the answer that it shows."""
    found = TRANSCRIPT.findall(README.read_text(encoding="utf-8"))
    assert len(found) == 1, "README.md shows one `$ seqplan suggest` transcript"
    return shlex.split(found[0][0]), found[0][1]


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
    words, _ = shown()
    block = f"```\n$ seqplan {shlex.join(words)}\n{printed(words)}```"
    text = README.read_text(encoding="utf-8")
    README.write_text(TRANSCRIPT.sub(lambda _: block, text), encoding="utf-8")


if __name__ == "__main__":
    main()
