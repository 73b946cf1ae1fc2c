"""Durable, atomic writing: a reader, or a crash, finds the old content or the new, never a part."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from progfed.errors import StorageError


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn an error of the disk inside the block into a `StorageError`; what was committed before is still there."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = "free some space" if full else "make it writable"
        raise StorageError(
            f"{path} cannot be written ({error.strerror or error}): {advice}, then give the same command "
            "again, which continues a run from its last checkpoint; or choose another folder with --out"
        ) from error


def write_synced(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a new file and wait until the disk has it. A file or link that has its name is removed, never followed."""
    path.unlink(missing_ok=True)
    with open(path, "xb", opener=partial(open_itself, mode=mode)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def open_itself(path: str, flags: int, mode: int = 0o666) -> int:
    """An opener for `open` that refuses to follow a link, and does not wait for the other end of a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)


def read_regular(path: Path) -> bytes:
    """The content of a file; a pipe or a device, which may never end, is refused."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is no regular file")
        return file.read()


def replace_file(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a file so that a reader, or a crash, finds the old content or the new, never a part."""
    aside = path.with_name(f".{path.name}.writing")
    with storing(path):
        write_synced(aside, data, mode=mode)
        os.replace(aside, path)
        sync_directory(path.parent)


def make_directory(path: Path) -> None:
    """Make a folder, and those above it, so that a power loss does not take them away again."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames in a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
