"""YAML as people mean it: the part of YAML 1.2 that configuration needs, and an error for every trap.

PyYAML reads YAML 1.1, where `no` is false, 010 is 8, 1:30 is 90, the later of two equal keys wins and
3.35e12 is text. Here the events of its parser (which knows the syntax, and nothing of types) are turned
into values by our own few rules, so nothing is constructed that was not written: no tags, no anchors and
aliases (a few lines of those can stand for 10^10 values), no nesting without end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from seqplan.planner.errors import SeqplanError
from seqplan.planner.reading.text_file import MAX_BYTES, read_text

MAX_DEPTH = 32
"""Levels of nesting; a plan has five."""

MAX_PROBLEMS = 8
"""Problems that one message lists."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf", ".nan": "nan"}
_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_TRAPS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"(?:yes|no|on|off)", re.IGNORECASE),
        "is a truth value to some YAML readers and text to others; quote it, or write true or false",
    ),
    (
        re.compile(r"[-+]?0[0-9_]+|[-+]?0o[0-7_]+|[-+]?0x[0-9a-fA-F_]+|[-+]?0b[01_]+"),
        "may be read as octal, hexadecimal or binary; write it in decimal without leading zeros, or quote it",
    ),
    (
        re.compile(r"[-+]?[0-9][0-9_]*(?:_[0-9]+)+(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?"),
        "has an underscore: some YAML readers drop it, others read text; write the digits alone, or quote it",
    ),
    (
        re.compile(r"[-+]?[0-9]+(?::[0-5]?[0-9])+(?:\.[0-9_]*)?"),
        "is a number in base 60 to some YAML readers (12:30 is 750); write it in decimal, or quote it",
    ),
)
_LONGEST_NUMBER = 40


def load_yaml(path: str | Path, *, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The mapping in the file, or one SeqplanError that names file, line and key."""
    return parse_yaml(read_text(path, max_bytes=max_bytes), str(path))


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """The mapping in `text`; `where` names it in errors."""
    reader = _Reader(where)
    try:
        value = reader.document(yaml.parse(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        raise SeqplanError(*_syntax_error(where, text, error)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SeqplanError(f"{where}: line {line}: a control character, which no text has.") from None
    if reader.problems:
        more = len(reader.problems) - MAX_PROBLEMS
        listed = "; ".join(reader.problems[:MAX_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
        raise SeqplanError(f"{where}: {listed}.")
    if not isinstance(value, dict):
        raise SeqplanError(f"{where}: expected keys with values at the top level, not {kind_of(value)}.")
    return value


def kind_of(value: object) -> str:
    """What a value is, in a reader's words."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, dict):
        return "a group of keys"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, bool):
        return "a truth value"
    return "text" if isinstance(value, str) else "a number"


class _Reader:
    """Builds values from parser events and notes what is wrong, as far as reading can go on."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.problems: list[str] = []

    def document(self, events: Iterator[Any]) -> Any:
        value: Any = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._stop(event, "a second document begins with ---; keep one")
                value = self._value(next(events), events, "", 0)
        if not documents:
            raise SeqplanError(f"{self.where}: the file is empty.")
        return value

    def _stop(self, event: Any, problem: str) -> None:
        """An error after which nothing more is read."""
        found = [*self.problems[:MAX_PROBLEMS], f"line {event.start_mark.line + 1}: {problem}"]
        raise SeqplanError(f"{self.where}: {'; '.join(found)}.")

    def _value(self, event: Any, events: Iterator[Any], key: str, depth: int) -> Any:
        named = f"{key}: " if key else ""
        if isinstance(event, yaml.AliasEvent):
            self._stop(event, f"{named}aliases (*{shorten(event.anchor)}) are not read; write the value out")
        if event.anchor is not None:
            self._stop(event, f"{named}anchors (&{shorten(event.anchor)}) are not read; write the value only")
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self._stop(event, f"{named}tags ({shorten(tag)}) are not read; write the plain value")
        if depth > MAX_DEPTH:
            self._stop(event, f"{named}nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, key) if event.implicit[0] else event.value
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(item := next(events), yaml.SequenceEndEvent):
                items.append(self._value(item, events, f"{key}[{len(items)}]", depth + 1))
            return items
        return self._mapping(events, key, depth)

    def _mapping(self, events: Iterator[Any], key: str, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        lines: dict[str, int] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent) or event.anchor or event.tag or not event.value:
                self._stop(event, f"{key + ': ' if key else ''}a key must be plain text")
            name = event.value
            path = f"{key}.{shorten(name)}" if key else shorten(name)
            value = self._value(next(events), events, path, depth + 1)
            line = event.start_mark.line + 1
            if name in found:
                self.problems.append(
                    f"line {line}: {path} is given twice, {shorten(found[name])} in line {lines[name]} "
                    f"and {shorten(value)} here; keep one"
                )
            found[name], lines[name] = value, line
        return found

    def _scalar(self, event: Any, key: str) -> Any:
        """A plain scalar by the rules of YAML 1.2's core schema; the traps of 1.1 are problems."""
        text = event.value
        if text in _NULL:
            return None
        if text in _BOOL:
            return _BOOL[text]
        if text.lower() in _SPECIAL:
            return float(_SPECIAL[text.lower()])
        for pattern, problem in _TRAPS:
            if pattern.fullmatch(text):
                return self._trap(event, key, problem)
        is_int = _INT.fullmatch(text)
        if not is_int and not _FLOAT.fullmatch(text):
            return text
        if len(text) > _LONGEST_NUMBER:
            return self._trap(event, key, f"has more than {_LONGEST_NUMBER} digits")
        if is_int:
            return int(text)
        number = float(text)
        return number if abs(number) != float("inf") else self._trap(event, key, "is too large for a number")

    def _trap(self, event: Any, key: str, problem: str) -> str:
        self.problems.append(f"line {event.start_mark.line + 1}: {key}: {shorten(event.value)} {problem}")
        return str(event.value)


def shorten(value: object, limit: int = 60) -> str:
    """A value as an error shows it: one line, never long."""
    if isinstance(value, dict | list | tuple):
        return f"{kind_of(value)} ({len(value)})"
    text = value if isinstance(value, str) else repr(value)
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _syntax_error(where: str, text: str, error: yaml.MarkedYAMLError) -> tuple[str, str]:
    """Message and hint of a syntax error, with line and column."""
    mark = error.problem_mark or error.context_mark
    problem = " ".join((error.problem or error.context or "not YAML").split())
    if mark is None:
        return f"{where}: not YAML: {problem}.", ""
    place = f"{where}: line {mark.line + 1}, column {mark.column + 1}"
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in line[: mark.column + 1] or line[: len(line) - len(line.lstrip())].count("\t"):
        return f"{place}: a tab where YAML wants spaces.", "Indent with spaces."
    return (
        f"{place}: not YAML: {shorten(problem, 120)}.",
        "Each line is `key: value`; nested keys are indented.",
    )
