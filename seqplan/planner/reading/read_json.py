"""Reads a JSON file that a stranger wrote: one object, or one line that says what the file really is.

Files called config.json turn out to be Git LFS pointers, gzip archives, pages of HTML, pasted logs, Python
dicts or YAML, with marks and encodings of every editor. Each is told by its content, never by its name, and
nothing is ever unpacked, unpickled or evaluated.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from seqplan.planner.errors import SeqplanError

LARGEST_FILE_BYTES = 4 * 2**20
"""A config.json has some kilobytes; weights and tokenizers, which are megabytes, are not worth parsing."""

_BINARY_MARKS: tuple[tuple[bytes, str, str], ...] = (
    (b"\x1f\x8b", "gzip-compressed", "Decompress it first (gunzip)."),
    (b"PK\x03\x04", "a zip archive (PyTorch weights look like this)", "Pass the config.json beside it."),
    (b"\x80\x02", "a Python pickle", "Pass the config.json beside it."),
    (b"\x80\x04", "a Python pickle", "Pass the config.json beside it."),
    (b"GGUF", "a GGUF weight file", "Pass the config.json of the original model."),
    (b"\x89HDF", "an HDF5 weight file", "Pass the config.json beside it."),
    (b"BZh", "bzip2-compressed", "Decompress it first (bunzip2)."),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed", "Decompress it first (zstd -d)."),
    (b"\xfd7zXZ", "xz-compressed", "Decompress it first (unxz)."),
)

# utf-32 before utf-16: its mark begins with the same two bytes.
_MARKS: tuple[tuple[bytes, str], ...] = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

_WANTED = "Pass a Hugging Face config.json, which is one JSON object."
_YAML_LINE = re.compile(r"(?:-\s+)?[\w.-]+\s*:(?:\s|$)|---\s*$|#|%YAML")


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in the file; anything else is a SeqplanError that names the file and the line."""
    try:
        if not path.is_file():
            raise SeqplanError(f"{path}: not a regular file.", _WANTED)
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise SeqplanError(f"{path}: cannot be read: {error.strerror or error}.") from None
    if len(data) > LARGEST_FILE_BYTES:
        _refuse_binary(data, str(path))
        raise SeqplanError(
            f"{path}: more than {LARGEST_FILE_BYTES:,} bytes, too large for a config.json.", _WANTED
        )
    return parse_json_object(data, str(path))


def parse_json_object(data: bytes, where: str) -> dict[str, Any]:
    """The object in these bytes; `where` names them in errors."""
    text = _decode(data, where)
    if not text.strip():
        raise SeqplanError(f"{where}: the file is empty.", _WANTED)
    if text.startswith("version https://git-lfs"):
        raise SeqplanError(f"{where}: a Git LFS pointer, not the file itself.", "Run: git lfs pull")
    _check_start(text, where)
    value = _parse(text, where)
    if isinstance(value, str):
        raise SeqplanError(
            f"{where}: holds only the text {_shown(value)}; a model id is not a config.",
            f"{_WANTED} Nothing is downloaded.",
        )
    if not isinstance(value, dict):
        raise SeqplanError(f"{where}: expected one object, found {kind_of(value)}.", _WANTED)
    return value


def noting(repeated: list[str]) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """An object_pairs_hook of json that adds every key that is given twice to `repeated`."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in items:
            if key in found:
                repeated.append(f"{key} ({_shown(found[key])} and {_shown(value)})")
            found[key] = value
        return found

    return pairs


def kind_of(value: Any) -> str:
    """What a JSON value is, in words."""
    if value is None:
        return "null"
    kinds = {bool: "a truth value", str: "a string", list: "a list", dict: "an object"}
    return kinds.get(type(value), "a number")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _refuse_binary(data: bytes, where: str) -> None:
    """Archives and weight files, told by their first bytes."""
    for mark, kind, hint in _BINARY_MARKS:
        if data.startswith(mark):
            raise SeqplanError(f"{where}: {kind}, not JSON text.", hint)
    if data[8:9] == b"{" and b"\x00" in data[:8] and data[:2] != b"{\x00":
        raise SeqplanError(
            f"{where}: a safetensors weight file, not JSON.", "Pass the config.json beside it."
        )


def _decode(data: bytes, where: str) -> str:
    _refuse_binary(data, where)
    # Without a mark json's own rule tells the encoding by where the first two characters have zeros.
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), json.detect_encoding(data))
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise SeqplanError(
            f"{where}: not text: byte 0x{data[error.start]:02x} at offset {error.start} is not {encoding}.",
            _WANTED,
        ) from None
    if "\x00" in text:
        line = text.count("\n", 0, text.index("\x00")) + 1
        raise SeqplanError(f"{where}: not text: a NUL byte on line {line}.", _WANTED)
    return text


def _check_start(text: str, where: str) -> None:
    """What stands where the opening brace should: prose, HTML, YAML."""
    body = text.lstrip()
    line = text.count("\n", 0, len(text) - len(body)) + 1
    if body[0] in '{["' or re.match(r"-?[0-9]|(true|false|null|NaN|-?Infinity)\b", body):
        return
    first = _shown(body.splitlines()[0].strip())
    if body[0] == "<":
        raise SeqplanError(
            f"{where}: line {line}: HTML or XML, not JSON.", "Download the raw file, not its web page."
        )
    if _YAML_LINE.match(body):
        raise SeqplanError(f"{where}: line {line}: {first} is YAML, not JSON.", _WANTED)
    if "{" in body:
        raise SeqplanError(
            f"{where}: line {line}: text before the opening brace: {first}.",
            "Keep only what is from { to its }.",
        )
    raise SeqplanError(f"{where}: line {line}: {first} is not JSON.", _WANTED)


def _parse(text: str, where: str) -> Any:
    repeated: list[str] = []
    try:
        value = json.loads(text, object_pairs_hook=noting(repeated))
    except json.JSONDecodeError as error:
        raise _broken(text, error, where) from None
    except RecursionError:
        raise SeqplanError(f"{where}: nested too deeply to be a config.json.", _WANTED) from None
    except ValueError as error:  # an integer of more than 4,300 digits
        raise SeqplanError(f"{where}: a number is out of range: {str(error).split(';')[0]}.") from None
    if repeated:
        raise SeqplanError(f"{where}: given twice: {', '.join(repeated)}.", "Keep one of each.")
    return value


def _broken(text: str, error: json.JSONDecodeError, where: str) -> SeqplanError:
    """Where the JSON breaks, and what was probably meant."""
    place = f"{where}: line {error.lineno}, column {error.colno}"
    rest = text[error.pos :].lstrip()
    if not rest or any(word.startswith(rest) for word in ("true", "false", "null")):
        return SeqplanError(f"{place}: the file ends in the middle; it is truncated.", "Fetch it again.")
    if error.msg.startswith(("Unterminated string", "Invalid control")) and '"' not in rest[1:]:
        return SeqplanError(f"{place}: the file ends inside a string; it is truncated.", "Fetch it again.")
    if error.msg == "Extra data":
        return SeqplanError(f"{place}: more text after the closing brace: {_shown(rest.splitlines()[0])}.")
    if rest[0] == "'" or re.match(r"(True|False|None)\b", rest):
        return SeqplanError(
            f"{place}: this is Python, not JSON (single quotes, True, False, None).",
            "Write it with json.dumps or config.save_pretrained.",
        )
    if rest.startswith(("//", "/*", "#")):
        return SeqplanError(f"{place}: JSON has no comments.", "Remove the comment.")
    before = text[: error.pos].rstrip()
    if rest[0] in "}]" and before.endswith(","):
        return SeqplanError(f"{place}: a comma before the closing {rest[0]}.", "Remove the comma.")
    return SeqplanError(f"{place}: broken JSON: {error.msg[:1].lower()}{error.msg[1:]}.")
