"""Reading files that others made: hashes first, sizes capped, and one clear error that names the file."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from progfed.errors import DataError

MEGABYTE = 1 << 20
_CHUNK = MEGABYTE
_FAULTS = (OSError, EOFError, ValueError, zlib.error, tarfile.TarError)


def damaged(path: Path, why: str) -> DataError:
    """The error for a file that is there and cannot be used."""
    return DataError(f"{path} {why}: replace it with the original file (see `progfed data fetch --help`)")


def missing(path: Path, needed: str) -> DataError:
    """The error for a file that is not there; `needed` says what to put where."""
    return DataError(f"{path} is missing: {needed}")


def optional(module: str, extra: str) -> Any:
    """A package that only some data sets need; where it is missing, an error that names the extra that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(f"this data set needs the package {module}: install it with `progfed[{extra}]`") from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a decoder raises on broken bytes inside the block into one error that names the file."""
    try:
        yield
    except DataError:
        raise
    except MemoryError as error:
        raise damaged(path, "asks for more memory than there is") from error
    except _FAULTS as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise damaged(path, f"cannot be read ({reason})") from error


def require_file(path: Path, needed: str) -> int:
    """The size of a regular file. A pipe or a device is refused: it would make the reader wait for ever."""
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise missing(path, needed) from error
    except OSError as error:
        raise DataError(f"{path} cannot be opened ({error.strerror}): check the path and its permissions") from error
    if not stat.S_ISREG(status.st_mode):
        raise damaged(path, "is not a regular file")
    return status.st_size


def read_file(path: Path, *, cap: int, needed: str = "put the file there") -> bytes:
    """The bytes of a file of at most `cap` bytes; what ends in `.gz` is decompressed, to at most `cap` bytes too."""
    size = require_file(path, needed)
    if size > cap:
        raise damaged(path, f"has {size:,} bytes, more than the {cap:,} it can have")
    with reading(path), _opened(path) as stream:
        content = stream.read(cap + 1)
    if len(content) > cap:
        raise damaged(path, f"decompresses to more than the {cap:,} bytes it can have")
    return content


def read_start(path: Path, number: int, *, needed: str = "put the file there") -> bytes:
    """The first bytes of a file, or of what a `.gz` file decompresses to; fewer where it has no more."""
    require_file(path, needed)
    with reading(path), _opened(path) as stream:
        return stream.read(number)


def check_digest(path: Path, content: bytes, digest: str) -> None:
    """Refuse content whose hash is not `digest`, written `md5:…` or `sha256:…`."""
    algorithm, expected = digest.split(":")
    _compare(path, hashlib.new(algorithm, content, usedforsecurity=False).hexdigest(), digest, expected)


def check_file(
    path: Path, digest: str, *, unzip: bool = False, cap: int = 1 << 34, progress: Callable[[int], None] | None = None
) -> None:
    """Refuse a file whose hash is not `digest`; with `unzip` the hash is of what a `.gz` file decompresses to."""
    algorithm, expected = digest.split(":")
    state = hashlib.new(algorithm, usedforsecurity=False)
    total = 0
    with reading(path), _opened(path) if unzip else path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            total += len(chunk)
            if total > cap:
                raise damaged(path, f"decompresses to more than the {cap:,} bytes it can have")
            state.update(chunk)
            if progress is not None:
                progress(len(chunk))
    _compare(path, state.hexdigest(), digest, expected)


def _compare(path: Path, found: str, digest: str, expected: str) -> None:
    if found != expected:
        raise damaged(path, f"is not the published file (its hash is {found}, expected {digest})")


def _opened(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return path.open("rb")
