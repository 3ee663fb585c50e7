"""Files that commands write: asked for before the work, and whole or not there at all after it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from seqplan.planner.errors import SeqplanError


def check_output_path(path: Path, example: str = "plan.yaml") -> None:
    """Whether a file can be written there; asked before a search, not after it."""
    folder = path.parent
    if path.is_dir():
        raise SeqplanError(f"{path} is a folder.", f"Name a file in it: {path / example}.")
    if path.exists() and not path.is_file():  # replaced by a file it would be gone: /dev/null
        raise SeqplanError(f"{path} is not a regular file.", "Choose another place.")
    if not folder.is_dir():
        raise SeqplanError(f"cannot write {path}: the folder {folder} does not exist.", "Make it first.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SeqplanError(
            f"cannot write {path}: the folder {folder} is not writable.", "Choose another place."
        )


def write_whole(path: Path, parts: Iterable[str]) -> None:
    """Write the whole file or nothing: another reader or writer never sees a part of it."""
    path = path.resolve()  # what a link leads to, not the link
    umask = os.umask(0)
    os.umask(umask)
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            temporary = file.name
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(path)
        temporary = None
    except OSError as error:
        raise SeqplanError(
            f"cannot write {path}: {error.strerror or error}.", "Choose another place."
        ) from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
