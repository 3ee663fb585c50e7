"""YAML without its traps: what is read, and what is refused with file, line and key."""

from __future__ import annotations

import errno
import gzip
import math
import os
import resource
from pathlib import Path
from typing import Any

import pytest
import yaml

from seqplan.planner.errors import SeqplanError
from seqplan.planner.reading.strict_yaml import load_yaml, parse_yaml

BOMB_BYTES = 200e6
"""What a hostile file may cost."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3.35e12", 3.35e12),  # YAML 1.1, and so PyYAML, reads text here
        ("1e6", 1e6),
        ("-2.5E-3", -2.5e-3),
        ("8.", 8.0),
        (".5", 0.5),
        ("12", 12),
        ("-3", -3),
        ("0", 0),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("a100-80", "a100-80"),
        ('"010"', "010"),
        ("'no'", "no"),
        ('"12"', "12"),
        ("2024-01-31", "2024-01-31"),
        ("80 GiB", "80 GiB"),
        ("no way", "no way"),
        ("\uff13\uff12", "\uff13\uff12"),
        ("[1, [2, x]]", [1, [2, "x"]]),
        ("{b: {c: 1}}", {"b": {"c": 1}}),
        ("|\n  two\n  lines\n", "two\nlines\n"),
    ],
)
def test_plain_values(text: str, expected: Any) -> None:
    found = parse_yaml(f"a: {text}", "f.yaml")["a"]
    assert found == expected
    assert type(found) is type(expected)


def test_nan_is_read_as_a_number() -> None:
    assert math.isnan(parse_yaml("a: .nan", "f.yaml")["a"])


def test_keys_are_text_whatever_they_look_like() -> None:
    assert parse_yaml("on: 1\n010: 2\nnull: 3\n", "f.yaml") == {"on": 1, "010": 2, "null": 3}


REFUSED: list[tuple[str, tuple[str, ...]]] = [
    ("a: no", ("line 1: a: no", "quote it")),
    ("x:\n  a: Yes", ("line 2: x.a: Yes", "quote it")),
    ("a: on", ("a: on", "truth value")),
    ("a: [1, off]", ("a[1]: off",)),
    ("a: 010", ("a: 010", "decimal")),
    ("a: -08", ("a: -08", "decimal")),
    ("a: 0x1F", ("a: 0x1F", "decimal")),
    ("a: 0o17", ("a: 0o17",)),
    ("a: 1_000", ("a: 1_000", "digits alone")),
    ("a: 12:30", ("a: 12:30", "base 60")),
    ("a: 3:20", ("a: 3:20",)),
    ("a: 1e400", ("a: 1e400", "too large")),
    ("a: " + "9" * 5000, ("more than 40 digits",)),
    ("a: 1\nb: 2\na: 3", ("line 3: a is given twice", "1 in line 1 and 3 here")),
    ("x: {a: 1, a: [2]}", ("x.a is given twice", "1 in line 1 and a list (1) here")),
    ("a: &x 1", ("line 1: a: anchors (&x)",)),
    ("a: *x", ("line 1: a: aliases (*x)",)),
    ("a: !!python/tuple [1]", ("line 1: a: tags (!!python/tuple)",)),
    ("a: !!python/object/apply:os.getcwd []", ("tags (!!python/object/apply:os.getcwd)",)),
    ("a: !mine 1", ("tags (!mine)",)),
    ("a: !!int 1", ("tags (!!int)",)),
    ("a: 1\n\tb: 2", ("line 2, column 1", "tab")),
    ("a:\n\tb: 2", ("line 2", "tab", "Indent with spaces")),
    ("a: [1, 2", ("not YAML", "line ")),
    ("a: b: c", ("line 1, column 5: not YAML",)),
    ("a: 1\n---\na: 2", ("line 2: a second document",)),
    ("- a\n- b", ("expected keys", "a list")),
    ("just words", ("expected keys", "text")),
    ("7", ("expected keys", "a number")),
    ("---", ("expected keys", "nothing")),
    ("# a comment", ("the file is empty",)),
    ("? [a]\n: 1", ("a key must be plain text",)),
    ("a: \x07", ("line 1: a control character",)),
    ("a: " + "[" * 40 + "]" * 40, ("nested deeper than 32 levels",)),
]


@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
@pytest.mark.parametrize(("text", "said"), REFUSED, ids=[repr(text[:24]) for text, _ in REFUSED])
def test_refused_with_place_and_key(
    text: str, said: tuple[str, ...], loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With libyaml's parser and with the one in Python, which stands in where libyaml is missing."""
    monkeypatch.setattr("seqplan.planner.reading.strict_yaml._Loader", getattr(yaml, loader, yaml.SafeLoader))
    with pytest.raises(SeqplanError) as error:
        parse_yaml(text, "f.yaml")
    message = str(error.value)
    assert message.startswith("f.yaml: ")
    assert "\n" not in message
    assert [part for part in said if part not in message] == []


def test_all_traps_of_a_file_are_told_at_once() -> None:
    with pytest.raises(SeqplanError) as error:
        parse_yaml("nodes: 2\ngpu: no\nnodes: 010\n", "f.yaml")
    message = str(error.value)
    assert "line 2: gpu: no" in message
    assert "line 3: nodes: 010" in message
    assert "nodes is given twice, 2 in line 1 and 010 here" in message


def test_a_long_list_of_problems_is_cut() -> None:
    with pytest.raises(SeqplanError) as error:
        parse_yaml("".join(f"k{i}: no\n" for i in range(30)), "f.yaml")
    assert "k7: no" in str(error.value)
    assert "k8: no" not in str(error.value)
    assert "and 22 more" in str(error.value)


def _bomb() -> str:
    levels = ["a0: &a0 [" + ",".join(["x"] * 10) + "]"]
    levels += [f"a{i}: &a{i} [" + ",".join([f"*a{i - 1}"] * 10) + "]" for i in range(1, 10)]
    return "\n".join(levels)


@pytest.mark.parametrize(
    "text", [_bomb(), "a: " + "[" * 400_000, "a: {" * 200_000, "[" + "a, " * 300_000], ids=len
)
def test_hostile_files_are_cheap(text: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SeqplanError):
        parse_yaml(text, "f.yaml")
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < BOMB_BYTES


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (b"\n  \n", "the file is empty"),
        ("a: 1".encode("utf-16"), "UTF-16"),
        ("a: 1".encode("utf-32"), "UTF-32"),
        (b"a: \x00\x01", "binary"),
        (bytes([0x80, 2, 0x7D]), "not UTF-8 text (byte 0 is 0x80)"),
        (b"a: caf\xe9", "byte 6 is 0xe9"),
        (gzip.compress(b"a: 1", mtime=0), "gzip"),
        (b"PK\x03\x04rest", "zip"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"a: 1\n" * 300_000, "larger than 1,048,576 bytes"),
    ],
)
def test_files_that_are_no_text(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(content)
    with pytest.raises(SeqplanError) as error:
        load_yaml(path)
    assert str(error.value).startswith(f"{path}: ")
    assert said in str(error.value)


def test_a_byte_order_mark_and_windows_lines_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: x\r\n")
    assert load_yaml(path) == {"a": 1, "b": "x"}


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "none.yaml", "no such file"), (tmp_path, "is a folder")):
        with pytest.raises(SeqplanError) as error:
            load_yaml(path)
        assert str(error.value).startswith(f"{path}: {said}")
    with pytest.raises(SeqplanError) as error:
        load_yaml("a\0b")
    assert "cannot be read" in str(error.value)


def test_a_file_without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(SeqplanError) as error:
        load_yaml("f.yaml")
    assert str(error.value) == "f.yaml: cannot be read: Permission denied."


def test_an_endless_file_is_not_read_to_its_end() -> None:
    with pytest.raises(SeqplanError) as error:
        load_yaml("/dev/zero")
    assert "larger than" in str(error.value)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(SeqplanError, match=r"pipe.yaml: is a pipe, not a file"):
        load_yaml(tmp_path / "pipe.yaml")
