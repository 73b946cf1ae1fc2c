"""Trials that try to break a run: killed processes, lost power, hostile messages, clients that fail, full disks.

Each trial takes a count and a seed and raises `TrialFailed` where a promise of docs/reliability.md is broken. The tests
run them with small counts, `make chaos` with large ones, and `progfed selftest` for about a minute on anyone's machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from progfed.errors import ProgfedError


class TrialFailed(ProgfedError):
    """A promise was broken; the message says which, and what repeats it."""


def expect(held: bool, promise: str) -> None:
    """Fail the trial where a promise does not hold."""
    if not held:
        raise TrialFailed(promise)


@contextmanager
def workspace() -> Iterator[Path]:
    """A folder to break things in: in memory where there is a memory file system, gone afterwards."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(prefix="progfed-", dir=memory if memory.is_dir() else None) as made:
        folder = Path(made)
        folder.chmod(0o755)  # a trial that gives up its rights still has to find it
        yield folder
