"""Reading a small text file that a user named: every way in which it is not one has its own sentence."""

from __future__ import annotations

import codecs
from pathlib import Path

from seqplan.planner.errors import SeqplanError

MAX_BYTES = 2**20
"""Configuration is kilobytes; a megabyte is the wrong file."""

_UTF16 = "not UTF-8 text but UTF-16 (PowerShell's > writes it)"
_UTF32 = "not UTF-8 text but UTF-32"
_STARTS: tuple[tuple[bytes, str, str], ...] = (
    (b"\x1f\x8b", "compressed with gzip", "Unpack it with gunzip."),
    (b"PK\x03\x04", "a zip archive", "Unpack it, or give the text file itself."),
    (b"version https://git-lfs", "a git-LFS pointer, not the file itself", "Run `git lfs pull`."),
    (codecs.BOM_UTF32_LE, _UTF32, "Save it as UTF-8."),
    (codecs.BOM_UTF32_BE, _UTF32, "Save it as UTF-8."),
    (codecs.BOM_UTF16_LE, _UTF16, "Save it as UTF-8."),
    (codecs.BOM_UTF16_BE, _UTF16, "Save it as UTF-8."),
)


def read_text(path: str | Path, *, max_bytes: int = MAX_BYTES) -> str:
    """The file's text without a byte-order mark, or a SeqplanError that says what the file is instead."""
    try:
        if Path(path).is_fifo():  # opening one waits for a writer, maybe for ever
            raise SeqplanError(f"{path}: is a pipe, not a file.", "Write it to a file and give that.")
        with open(path, "rb") as file:
            raw = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise SeqplanError(f"{path}: no such file.") from None
    except IsADirectoryError:
        raise SeqplanError(f"{path}: is a folder, not a file.", "Give the file in it.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SeqplanError(f"{path}: cannot be read: {reason}.") from None
    for start, what, hint in _STARTS:
        if raw.startswith(start):
            raise SeqplanError(f"{path}: is {what}.", hint)
    if len(raw) > max_bytes:
        raise SeqplanError(f"{path}: is larger than {max_bytes:,} bytes, so it is not a configuration file.")
    if b"\x00" in raw:
        raise SeqplanError(f"{path}: is a binary file, not text (byte {raw.index(0):,} is zero).")
    if not raw.strip():
        raise SeqplanError(f"{path}: the file is empty.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SeqplanError(
            f"{path}: is not UTF-8 text (byte {error.start:,} is 0x{raw[error.start]:02x}).",
            "Save it as UTF-8.",
        ) from None
