"""What the tests of broken files share: how a file is spoiled, and the error that loading it must end in."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from progfed.errors import DataError

Spoil = Callable[[Path], None]
"""Takes the data folder and breaks a file in it."""

Case = tuple[str, Spoil]
"""The name that the error has to mention, and what is done to the folder."""


def changed(path: Callable[[Path], Path], change: Callable[[bytes], bytes]) -> Spoil:
    """Replace the content of the file that `path` finds in the folder by what `change` makes of it."""

    def spoil(root: Path) -> None:
        path(root).write_bytes(change(path(root).read_bytes()))

    return spoil


def unzipped(path: Callable[[Path], Path], change: Callable[[bytes], bytes]) -> Spoil:
    """The same for what is inside a gzip file."""
    return changed(path, lambda content: gzip.compress(change(gzip.decompress(content))))


def cut(path: Callable[[Path], Path]) -> Spoil:
    """Keep only the first 60 % of a file."""
    return changed(path, lambda content: content[: int(len(content) * 0.6)])


def refused(root: Path, load: Callable[[], object], named: str) -> str:
    """The message of the DataError; checked to be one line that names the file, with no file made, changed or lost."""
    before = _snapshot(root)
    with pytest.raises(DataError) as caught:
        load()
    message = str(caught.value)
    assert named in message
    assert "\n" not in message
    assert len(message) < 600
    assert _snapshot(root) == before
    assert not (root / "EXECUTED").exists()
    return message


def refused_once_spoiled(root: Path, load: Callable[[], object], case: Case) -> str:
    """The message of the DataError that a case leads to; checked that the folder loads before it is spoiled."""
    named, spoil = case
    load()
    spoil(root)
    return refused(root, load, named)


def _snapshot(root: Path) -> dict[str, tuple[int, int]]:
    status = {path: path.lstat() for path in root.rglob("*")}
    return {str(path): (one.st_size, one.st_mtime_ns) for path, one in status.items()}
