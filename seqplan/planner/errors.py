"""The one exception that a user may see.

Raised wherever an input is wrong; caught once, in the command line, which prints the message and the
hint in one line and exits with status 2 (1 where the input was right and the work failed). A fault of our
own is an `assert`, never a SeqplanError.
"""

from __future__ import annotations


class SeqplanError(Exception):
    """What is wrong with its numbers and the rule (`message`), and what to set instead (`hint`)."""

    exit_status = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class FailedError(SeqplanError):
    """What was asked could be tried, and failed: as one line too, but not as a wrong input."""

    exit_status = 1
