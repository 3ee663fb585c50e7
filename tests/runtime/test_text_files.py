"""Files and folders as one row of byte tokens, and the order of samples."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from seqplan.planner.errors import SeqplanError
from seqplan.runtime.sample_order import Permutation, SampleOrder, global_row
from seqplan.runtime.text_files import ByteTokens, TextFiles


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_folder_gives_its_text_files_sorted(tmp_path: Path) -> None:
    taken = ["a/z.txt", "b/c/d.py", "b/e.md", "top.RST"]
    left_out = ["a/picture.png", ".git/config.txt", "b/__pycache__/m.py", "b/.hidden.txt"]
    for name in [*reversed(taken), *left_out]:
        write(tmp_path / name, b"words")
    write(tmp_path / "b/binary.txt", b"ab\0cd")
    write(tmp_path / "b/empty.txt", b"")
    files = TextFiles.find([tmp_path])
    assert [path.relative_to(tmp_path.resolve()).as_posix() for path in files.paths] == taken
    assert files.skipped == 2
    assert files.total_bytes == 20


def test_named_files_keep_their_order_and_come_once(tmp_path: Path) -> None:
    b, a = write(tmp_path / "b.anything", b"bb"), write(tmp_path / "a", b"a")
    files = TextFiles.find([b, a, tmp_path / "." / "b.anything"])
    assert files.paths == (b.resolve(), a.resolve())
    assert files.sizes_bytes == (2, 1)
    assert files.digest != TextFiles.find([a, b]).digest


def test_all_wrong_sources_are_named_at_once(tmp_path: Path) -> None:
    write(tmp_path / "binary", b"\0")
    with pytest.raises(SeqplanError) as caught:
        TextFiles.find([tmp_path / "missing", tmp_path / "binary"])
    assert f"{tmp_path}/missing does not exist; {tmp_path}/binary is not text" in caught.value.message


def test_no_text_at_all(tmp_path: Path) -> None:
    write(tmp_path / "empty.txt", b"")
    with pytest.raises(SeqplanError, match=r"No text in .*: every file is empty.*\(1 skipped\)"):
        TextFiles.find([tmp_path])


@pytest.mark.parametrize("separator", [None, 256])
def test_every_range_is_read_as_if_all_were_in_memory(tmp_path: Path, separator: int | None) -> None:
    contents = [b"first", b"x", b"\xff\x80 third", b"the last one"]
    files = TextFiles.find([write(tmp_path / f"{i}.txt", content) for i, content in enumerate(contents)])
    everything: list[int] = []
    for content in contents:
        everything += [*content, *([] if separator is None else [separator])]
    tokens = ByteTokens(files, separator)
    assert len(tokens) == len(everything)
    for start in range(len(everything) + 1):
        for stop in range(start, len(everything) + 3):
            assert tokens.read(start, stop).tolist() == everything[start:stop]
    tokens.close()


def test_only_the_bytes_asked_for_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "huge.txt", b"text " * 2000)
    os.truncate(path, 1 << 40)  # a sparse terabyte
    read_bytes = []
    pread = os.pread

    def counting(descriptor: int, size: int, offset: int) -> bytes:
        read_bytes.append(size)
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", counting)
    tokens = ByteTokens(TextFiles.find([path]), None)
    assert tokens.read(5, 9).tolist() == [*b"text"]
    assert tokens.read((1 << 40) - 3, 1 << 40).tolist() == [0, 0, 0]
    assert sum(read_bytes) == 7
    tokens.close()


def test_a_file_that_shrinks_is_an_error_and_one_that_grows_is_not(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"0123456789")
    tokens = ByteTokens(TextFiles.find([path]), None)
    with path.open("ab") as file:
        file.write(b"more")
    assert len(tokens.read(0, 100)) == 10
    os.truncate(path, 4)
    with pytest.raises(SeqplanError, match="has become shorter: 2 bytes at 2 where 8 were"):
        tokens.read(2, 10)
    tokens.close()
    path.unlink()
    with pytest.raises(SeqplanError, match="cannot be read any more"):
        tokens.read(0, 1)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 100, 1000])
def test_the_order_is_a_permutation(size: int) -> None:
    order = Permutation(size, seed=1)
    assert sorted(order[i] for i in range(size)) == list(range(size))


def test_the_order_looks_random() -> None:
    """Correlation of 4096 places with their samples: |r| < 5 / sqrt(4096) by far; so for neighbours."""
    order = np.array([Permutation(4096, seed=3)[i] for i in range(4096)])
    assert abs(np.corrcoef(order, np.arange(4096))[0, 1]) < 5 / 64
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 5 / 64
    assert [Permutation(4096, seed=4)[i] for i in range(8)] != order[:8].tolist()


def test_each_epoch_has_every_sample_once_in_another_order() -> None:
    order = SampleOrder(num_samples=12, global_batch_size=4, seed=0)
    drawn = [order.sample(step, row) for step in range(6) for row in range(4)]
    assert sorted(drawn[:12]) == sorted(drawn[12:]) == list(range(12))
    assert drawn[:12] != drawn[12:]
    assert order.sample(0, 0) == drawn[0]  # back to an earlier epoch


def test_rows_of_all_dp_ranks_are_the_batch() -> None:
    rows = [
        global_row(micro_batch, dp_rank, row, dp=3, micro_batch_size=2)
        for micro_batch in range(2)
        for dp_rank in range(3)
        for row in range(2)
    ]
    assert rows == list(range(12))
