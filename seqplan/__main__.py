"""The entry point: runs a command and turns whatever ends it into one line and an exit status.

0 done, 1 nothing fits or a check failed, 2 bad input, 130 interrupted (128 + SIGINT), 141 the reader of
stdout went away (128 + SIGPIPE, what a shell reports of any such program). Errors are caught here and
nowhere else: a user's mistake is one line on stderr, or one JSON object on stdout under --json; only a
fault of our own shows a traceback.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from seqplan.planner.errors import SeqplanError

BAD_INPUT = 2
INTERRUPTED = 130
BROKEN_PIPE = 141
FEW_COLLECTIONS = 50_000
"""Objects between collections: what planning makes is freed by its last reference, and looking costs 3 %."""

USE_TORCH = frozenset({"run", "calibrate", "verify"})
"""Commands that train or measure with torch, which may read the variable that is set below."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that the terminal cannot show is no reason to stop
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            status = _command(typed)
        except SeqplanError as error:
            status = _refuse(error.message, error.hint, as_json="--json" in typed, status=error.exit_status)
        except BrokenPipeError:
            raise
        except OSError as error:
            status = _refuse(_system_error(error), "", as_json="--json" in typed)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("seqplan: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # What is left in the buffer must not be flushed at exit into the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:  # stdout could not be written: a full disk
        return _refuse(_system_error(error), "", as_json=False)


def _command(typed: list[str]) -> int:
    """Parse and run with typer's command, but none of its own error printing."""
    if not USE_TORCH.intersection(typed[:1]):
        # OpenBLAS starts a thread a core as numpy loads; they wait by spinning: 0.1 CPU-s for no product.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        gc.set_threshold(FEW_COLLECTIONS)
    import typer

    from seqplan.cli import app

    usage_error: Any = typer.BadParameter.__mro__[2]  # click's own class, wherever this typer keeps it
    assert usage_error.__name__ == "ClickException", "typer moved the base class of its usage errors"
    command = typer.main.get_command(app)
    try:
        with command.make_context("seqplan", typed or ["--help"]) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except usage_error as error:
        message: str = error.format_message()
        raise SeqplanError(
            message.replace("Value error, ", "").replace("Input should", "it should")
        ) from None
    return 0


def _system_error(error: OSError) -> str:
    """What the system said, with the file where it names one."""
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{error.strerror or error}."


def _refuse(message: str, hint: str, *, as_json: bool, status: int = BAD_INPUT) -> int:
    """Tell the user what was wrong, in one line."""
    message, hint = " ".join(message.split()), " ".join(hint.split())
    if as_json:
        from seqplan.render import show_json

        show_json({"error": {"message": message, "hint": hint}})
    else:
        print(f"seqplan: {message} {hint}".rstrip(), file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
