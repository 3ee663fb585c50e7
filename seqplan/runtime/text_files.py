"""TextFiles: the user's files and folders as one long row of byte tokens, read only where a rank needs it.

The list of files and their sizes is made once, by the launcher, and every rank gets the same list: a file
that grows later (a log below the data folder) then cannot give ranks different samples. Sizes come from
`stat`; bytes are read with `pread` at the positions of one rank's tokens, so nobody ever holds a corpus
or a full-length sequence.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqplan.planner.errors import SeqplanError

_SUFFIXES = """
.txt .md .rst .tex .org .adoc .html .htm .xml .json .jsonl .csv .tsv .yaml .yml .toml .ini .cfg .log .srt
.py .pyi .c .h .cc .cpp .hpp .cu .java .js .ts .go .rs .rb .pl .lua .sh .sql .r .jl .f90 .scala .kt .swift .cs
.php .hs .ml
"""
TEXT_SUFFIXES = frozenset(_SUFFIXES.split())
"""What is taken from a folder. A file that is named itself may have any suffix."""

_SNIFFED_BYTES = 8192
"""A zero byte among the first so many means that a file is not text (the rule of git and grep)."""


@dataclass(frozen=True)
class TextFiles:
    """Files in a fixed order with the sizes that they had when they were listed; empty ones left out."""

    paths: tuple[Path, ...]
    sizes_bytes: tuple[int, ...]
    skipped: int = 0
    """Files of a folder that have a text suffix and are unreadable, binary or empty."""

    @classmethod
    def find(cls, sources: Sequence[Path | str]) -> TextFiles:
        """Files as given, and every text file below a folder, sorted by path. All faults at once."""
        found: dict[Path, int] = {}
        faults: list[str] = []
        skipped = 0
        for source in map(Path, sources):
            if source.is_dir():
                for path in sorted(_walk(source)):
                    size, fault = _inspect(path)
                    skipped += bool(fault) or size == 0
                    if not fault and size:
                        found.setdefault(path.resolve(), size)
            else:
                size, fault = _inspect(source)
                if fault:
                    faults.append(fault)
                elif size:
                    found.setdefault(source.resolve(), size)
        if faults:
            raise SeqplanError("; ".join(faults) + ".", "Give text files, or folders that hold some.")
        if not found:
            names = ", ".join(str(source) for source in sources) or "no file or folder"
            raise SeqplanError(
                f"No text in {names}: every file is empty, unreadable or not text ({skipped} skipped).",
                "Give files with text in them; from a folder those with a suffix such as .txt, .md or .py"
                " are taken.",
            )
        return cls(tuple(found), tuple(found.values()), skipped)

    @property
    def total_bytes(self) -> int:
        return sum(self.sizes_bytes)

    @property
    def digest(self) -> int:
        """63 bits of the order, names and sizes: equal on nodes that see the same data, wherever it lies."""
        text = "\n".join(
            f"{path.name} {size}" for path, size in zip(self.paths, self.sizes_bytes, strict=True)
        )
        return int.from_bytes(hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest()) >> 1


def _walk(folder: Path) -> Iterator[Path]:
    """Text files below `folder`; hidden folders and byte-code caches left out."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        for name in files:
            if not name.startswith(".") and Path(name).suffix.lower() in TEXT_SUFFIXES:
                yield Path(place, name)


def _inspect(path: Path) -> tuple[int, str]:
    """(size, "") of a text file, or (0, what is wrong with it)."""
    try:
        if not path.exists():
            return 0, f"{path} does not exist"
        if not path.is_file():
            return 0, f"{path} is not a regular file"
        with path.open("rb") as file:
            if b"\0" in file.read(_SNIFFED_BYTES):
                return 0, f"{path} is not text (a zero byte in its first {_SNIFFED_BYTES})"
            return os.fstat(file.fileno()).st_size, ""
    except OSError as error:
        return 0, f"{path} cannot be read ({error.strerror})"


class ByteTokens:
    """The files one after the other as tokens 0..255, each followed by `separator` where there is one."""

    def __init__(self, files: TextFiles, separator: int | None) -> None:
        self.files = files
        self.separator = separator
        self._open: tuple[int, int] = (-1, -1)  # (index of the file, its descriptor): neighbours share it

    @cached_property
    def _ends(self) -> list[int]:
        """Position after each file's last token (its separator included)."""
        extra = 0 if self.separator is None else 1
        return list(accumulate(size + extra for size in self.files.sizes_bytes))

    def __len__(self) -> int:
        return self._ends[-1]

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens of the positions start..stop-1; shorter only where the text ends."""
        stop = min(stop, len(self))
        tokens = np.empty(max(stop - start, 0), dtype=np.int64)
        at = start
        while at < stop:
            index = bisect_right(self._ends, at)
            begin = self._ends[index - 1] if index else 0
            size = self.files.sizes_bytes[index]
            take = min(stop, begin + size) - at
            if take > 0:
                data = self._pread(index, take, at - begin)
                tokens[at - start : at - start + take] = np.frombuffer(data, dtype=np.uint8)
                at += take
            if at < stop and at == begin + size and self.separator is not None:
                tokens[at - start] = self.separator
                at += 1
        return tokens

    def _pread(self, index: int, size: int, offset: int) -> bytes:
        path = self.files.paths[index]
        try:
            if self._open[0] != index:
                self.close()
                self._open = (index, os.open(path, os.O_RDONLY))
            data = os.pread(self._open[1], size, offset)
        except OSError as error:
            raise SeqplanError(
                f"{path} cannot be read any more ({error.strerror}).",
                "Keep the data in place during a run; on several nodes, under the same path on each.",
            ) from None
        if len(data) < size:
            raise SeqplanError(
                f"{path} has become shorter: {len(data)} bytes at {offset} where {size} were.",
                "Do not change the data during a run.",
            )
        return data

    def close(self) -> None:
        if self._open[1] >= 0:
            os.close(self._open[1])
        self._open = (-1, -1)
