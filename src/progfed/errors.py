"""The errors that a user's mistake leads to: one sentence each, and the exit code of the command that prints it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def printable(text: str) -> str:
    """Text from a file, a folder's name or a client, fit for a terminal and a page: one line, no control characters.

    >>> printable("two\\nlines, and \\x1b[31mred")
    'two lines, and �[31mred'
    """
    return "".join(c if c.isprintable() else " " if c.isspace() else "�" for c in text)


class ProgfedError(Exception):
    """Something the user can act on; the message says what was wrong, where, and what to do."""

    exit_code = 1

    def __str__(self) -> str:
        return printable(": ".join(map(str, self.args)))


class UsageError(ProgfedError):
    """An option, an experiment or a model that does not make sense."""

    exit_code = 2


class DataError(ProgfedError):
    """Data that is missing, damaged, or does not fit the model."""

    exit_code = 3


class TrainingError(ProgfedError):
    """Training cannot go on: the loss is not finite, or too few clients sent a valid update."""

    exit_code = 4


class StorageError(ProgfedError):
    """A run directory that cannot be written, or that holds something else."""

    exit_code = 5


class MessageError(ProgfedError):
    """Bytes that are not the message that was expected, or numbers that no message can hold.

    The round goes on without them, so no user should ever see this error by itself. Rejected updates are counted by
    `reason`.
    """

    exit_code = 4

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)  # as it is made again from these when it comes out of a worker process
        self.reason = reason


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question that offers up to three known words similar to a wrong one; empty where none is similar.

    >>> did_you_mean("epoch", ["epochs", "batch"])
    'did you mean epochs? '
    """
    near = difflib.get_close_matches(word, list(dict.fromkeys(known)), n=3, cutoff=0.5)
    return f"did you mean {', '.join(near)}? " if near else ""
