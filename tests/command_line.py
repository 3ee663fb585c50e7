"""Runs of the command line for its tests: in this process, so that hundreds cost little."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import pytest

from seqplan.__main__ import main

TINY = ["tiny", "--cluster", "local", "--gpus", "4", "--seq-len", "512", "--global-batch-size", "8"]
BERT = [
    "bert-large",
    "--cluster",
    "piz-daint",
    "--gpus",
    "64",
    "--seq-len",
    "512",
    "--global-batch-size",
    "64",
]


class Done(NamedTuple):
    status: int
    out: str
    err: str


class Seqplan(Protocol):
    def __call__(self, *arguments: str) -> Done: ...


def runner(capsys: pytest.CaptureFixture[str]) -> Seqplan:
    """A function that runs one command in this process."""

    def run(*arguments: str) -> Done:
        capsys.readouterr()
        status = main(arguments)
        return Done(status, *capsys.readouterr())

    return run


def replaced(arguments: list[str], flag: str, value: str) -> list[str]:
    """The arguments with one option's value changed."""
    place = arguments.index(flag) + 1
    return [*arguments[:place], value, *arguments[place + 1 :]]


def refusal(done: Done) -> str:
    """The one line of a refused input."""
    assert done.status == 2, done.out
    assert done.out == ""
    lines = done.err.splitlines()
    assert len(lines) == 1, done.err
    return lines[0]
