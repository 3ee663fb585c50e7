"""What a file called config.json may really be: each kind is accepted or told in one line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from seqplan.planner.errors import SeqplanError
from seqplan.planner.reading.read_json import LARGEST_FILE_BYTES, parse_json_object, read_json_object

OBJECT = {"model_type": "llama", "hidden_size": 64}
TEXT = json.dumps(OBJECT, indent=2)

ACCEPTED: dict[str, bytes] = {
    "plain": TEXT.encode(),
    "carriage returns": TEXT.replace("\n", "\r\n").encode(),
    "utf-8 with a mark": b"\xef\xbb\xbf" + TEXT.encode(),
    "utf-16 with a mark": TEXT.encode("utf-16"),
    "utf-16, big end first, with a mark": b"\xfe\xff" + TEXT.encode("utf-16-be"),
    "utf-16 without a mark": TEXT.encode("utf-16-le"),
    "utf-32 with a mark": TEXT.encode("utf-32"),
    "white space around": b"\n\n  " + TEXT.encode() + b"\n\n",
}


@pytest.mark.parametrize("data", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_every_encoding_of_an_editor_is_read(data: bytes) -> None:
    assert parse_json_object(data, "c.json") == OBJECT


# kind of file: (bytes, what the message must hold)
REFUSED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "c.json: the file is empty."),
    "only white space": (b" \n\n", "c.json: the file is empty."),
    "gzip": (gzip.compress(TEXT.encode()), "gzip-compressed"),
    "zip": (b"PK\x03\x04rest", "a zip archive"),
    "pickle": (b"\x80\x02}q\x00" + bytes(range(256)), "a Python pickle"),
    "safetensors": (b"\x10\x01\x00\x00\x00\x00\x00\x00" + b'{"weight":{}}', "a safetensors weight file"),
    "bytes of no encoding": (b'{"a": "\xe9"}', "byte 0xe9 at offset 7 is not utf-8"),
    "a NUL byte": (b'{"a":\n "\x00"}', "a NUL byte on line 2"),
    "a Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git lfs pull"),
    "a web page": (b"<!DOCTYPE html>\n<html></html>", "line 1: HTML or XML"),
    "YAML": (b"model_type: llama\nhidden_size: 64\n", "line 1: 'model_type: llama' is YAML, not JSON"),
    "prose": (b"hello world", "line 1: 'hello world' is not JSON"),
    "a pasted log": (
        b'\nModel config X {\n "a": 1\n}\n',
        "line 2: text before the opening brace: 'Model config X {'",
    ),
    "a printed dict": (b"{'a': 1, 'b': False}", "this is Python, not JSON"),
    "a capital truth value": (b'{"a": True}', "line 1, column 7: this is Python, not JSON"),
    "cut off": (TEXT[: len(TEXT) // 2].encode(), "truncated"),
    "cut off in a word": (b'{"a": fal', "line 1, column 7: the file ends in the middle"),
    "cut off in a string": (b'{\n"a": "b', "line 2, column 6: the file ends inside a string"),
    "a comma too many": (b'{\n"a": 1,\n}', "line 3, column 1: a comma before the closing }"),
    "a comment": (b'{\n// x\n"a": 1}', "line 2, column 1: JSON has no comments"),
    "a comma too few": (b'{"a": 1\n "b": 2}', "line 2, column 2: broken JSON"),
    "more than one object": (b'{"a": 1} {"b": 2}', "line 1, column 10: more text after the closing brace"),
    "a list": (b"[1]", "expected one object, found a list"),
    "a number": (b"12", "expected one object, found a number"),
    "null": (b"null", "expected one object, found null"),
    "a model id": (b'"org/model"\n', "holds only the text 'org/model'; a model id is not a config"),
    "repeated keys": (
        b'{"a": 32, "b": {"c": 1, "c": 2}, "a": 80}',
        "given twice: c (1 and 2), a (32 and 80)",
    ),
    "deep nesting": (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    "a number without end": (b'{"a": ' + b"9" * 5000 + b"}", "out of range"),
}


@pytest.mark.parametrize(("data", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_anything_else_is_told_in_one_line(data: bytes, message: str) -> None:
    with pytest.raises(SeqplanError) as caught:
        parse_json_object(data, "c.json")
    text = str(caught.value)
    assert message in text
    assert text.startswith("c.json: ")
    assert "\n" not in text
    assert len(text) < 300


def test_a_file_is_named_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "odd name \u00fc.json"
    path.write_bytes(b"{")
    with pytest.raises(SeqplanError, match=r"odd name .\.json: line 1, column 2"):
        read_json_object(path)


def test_a_huge_file_is_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b'{"a": "' + b"x" * LARGEST_FILE_BYTES + b'"}')
    with pytest.raises(SeqplanError, match="more than 4,194,304 bytes, too large"):
        read_json_object(path)


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(SeqplanError, match="not a regular file"):
        read_json_object(tmp_path)
