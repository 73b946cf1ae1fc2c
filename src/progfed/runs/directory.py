"""The run directory: what a run leaves on disk, line by line, and how it is read again.

`experiment.json` says what was asked, `rounds.jsonl` has one line per round, `checkpoint/` what a resumed run needs,
`model.safetensors` and `summary.json` the result; `best.safetensors` is the model of the best round, and
`exported.safetensors` the last one under the names of the module that was split. `privacy.secret`,
which nobody else may read, is there while a run with differential privacy is not complete.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import RawIOBase
from multiprocessing.util import register_after_fork
from pathlib import Path
from typing import Any

from progfed.errors import StorageError
from progfed.files import make_directory, open_itself, read_regular, replace_file, storing, sync_directory

Record = dict[str, Any]

SECRET = "privacy.secret"


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run."""

    path: Path

    @property
    def rounds(self) -> Path:
        return self.path / "rounds.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoint"

    @property
    def begun(self) -> bool:
        """Whether a round was finished here."""
        lines = self.rounds.exists() and self.rounds.stat().st_size > 0
        return lines or any(self.checkpoints.glob("round-*")) or (self.path / "summary.json").exists()

    def claim(self, description: Record) -> None:
        """Make the directory this experiment's, or refuse it if it is another's.

        A directory in which no round was finished is nobody's yet: what was asked there may have been refused, and is
        now asked as it should be.
        """
        described = self.path / "experiment.json"
        if described.exists() and self.begun:
            refuse_other(read_json(described), description, self.path)
        elif not described.exists() and any(
            entry.name not in (".lock", ".experiment.json.writing") for entry in self.path.iterdir()
        ):
            raise StorageError(
                f"{self.path} holds other files and no experiment.json: give --out an empty or new folder"
            )
        else:
            self.write("experiment.json", description)

    def write(self, name: str, value: Record) -> None:
        """Write a JSON file, whole or not at all."""
        replace_file(self.path / name, (json.dumps(value, indent=2) + "\n").encode())

    def read(self, name: str) -> Record | None:
        """A JSON file of the run, if it is there."""
        path = self.path / name
        return read_json(path) if path.exists() else None

    def secret(self) -> str | None:
        """The secret that the run's noise is drawn from, if it is there."""
        path = self.path / SECRET
        try:
            return read_regular(path).decode("ascii", "replace").strip() if path.exists() else None
        except OSError as error:
            raise StorageError(f"{path} cannot be read ({error.strerror or error}): make it readable") from error

    def keep_secret(self, secret: str) -> None:
        """Put the secret next to the records, for nobody else to read."""
        replace_file(self.path / SECRET, f"{secret}\n".encode(), mode=0o600)

    def forget_secret(self) -> None:
        """Remove the secret: a run that is complete draws nothing any more, and may be handed on."""
        with storing(self.path):
            (self.path / SECRET).unlink(missing_ok=True)

    def records(self) -> list[Record]:
        """One record per round; a last line that a crash cut short is left out."""
        if not self.rounds.exists():
            return []
        try:
            return [json.loads(line) for line in read_regular(self.rounds).split(b"\n")[:-1]]
        except (OSError, ValueError, RecursionError) as error:
            raise StorageError(f"{self.rounds} is damaged ({error}): start over with --fresh") from error

    def cut(self, committed: int) -> None:
        """Drop the lines after the committed round: they will be written again."""
        if not self.rounds.exists():
            if committed:
                raise StorageError(
                    f"{self.rounds} is missing, but round {committed} was committed: start over with --fresh"
                )
            return
        with storing(self.rounds), open(self.rounds, "rb+", opener=open_itself) as file:
            for _ in range(committed):
                if not file.readline().endswith(b"\n"):
                    raise StorageError(f"{self.rounds} has fewer than the {committed} committed rounds: use --fresh")
            file.truncate()
            os.fsync(file.fileno())

    @contextmanager
    def log(self) -> Iterator[Log]:
        """The open `rounds.jsonl`, for appending."""
        with storing(self.rounds):
            file = open(self.rounds, "ab", buffering=0, opener=open_itself)  # noqa: SIM115 closed below; see Log
            sync_directory(self.path)
        with file:
            yield Log(file, self.rounds)


class Log:
    """Appends records, one line each. Nothing is buffered: a line that a full disk refused is not tried again later."""

    def __init__(self, file: RawIOBase, path: Path) -> None:
        self._file, self._path = file, path

    def append(self, record: Record) -> None:
        line = json.dumps(record).encode() + b"\n"
        with storing(self._path):
            while line:
                line = line[self._file.write(line) or 0 :]

    def sync(self) -> None:
        """Wait until the disk has every line: a checkpoint of a round is only committed after its line."""
        with storing(self._path):
            os.fsync(self._file.fileno())


@contextmanager
def opened(path: Path) -> Iterator[RunDirectory]:
    """A run directory that is made if need be, can be written, and is nobody else's while it is open."""
    try:
        make_directory(path)
        lock = open(path / ".lock", "ab", opener=open_itself)  # noqa: SIM115 held for as long as the directory is open
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror}): choose another folder with --out") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StorageError(f"another process is running in {path}: wait for it, or choose another --out") from error
        # workers inherit the lock; one that outlives a killed run by a moment must not keep others out
        register_after_fork(lock, lambda held: held.close())
        yield RunDirectory(path)


def read_json(path: Path) -> Record:
    """A JSON object from a file, or a clear error."""
    try:
        value = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError) as error:
        raise StorageError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise StorageError(f"{path} does not hold a JSON object")
    return value


def refuse_other(found: Record, wanted: Record, path: Path) -> None:
    """Refuse a directory whose experiment differs, naming what differs."""
    before, now = flatten(found), flatten(wanted)
    different = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    if different:
        shown = ", ".join(f"{key} {before.get(key)!r} there, {now.get(key)!r} now" for key in different[:3])
        more = f", and {len(different) - 3} more" if len(different) > 3 else ""
        raise StorageError(
            f"{path} holds another experiment: {shown}{more}; choose another --out, or --fresh to move it aside"
        )


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dicts and lists as one level of dotted keys."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = ((str(index), item) for index, item in enumerate(value))  # type: ignore[assignment]
    else:
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in items:
        flat |= flatten(item, f"{prefix}.{key}" if prefix else key)
    return flat
