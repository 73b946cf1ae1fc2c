"""The one kind of error a user's mistake leads to: a sentence, and the exit code of the command that printed it."""

from __future__ import annotations


class ProgfedError(Exception):
    """Something the user can act on; the message says what was wrong, where, and what to do."""

    exit_code = 1


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
    """Bytes that are not the message that was expected; the round goes on without them."""

    exit_code = 6

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
