"""Members of a tar archive by their exact names, as streams: nothing is extracted, no path inside is ever used."""

from __future__ import annotations

import bz2
import gzip
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from progfed.data.integrity import damaged, reading, require_file

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}


_CHUNK = 1 << 20


class _Capped:
    """A stream that refuses to decompress more than `cap` bytes in all: the most that a decompression bomb can cost."""

    def __init__(self, stream: IO[bytes], path: Path, cap: int) -> None:
        self.stream, self.path, self.left = stream, path, cap

    def read(self, size: int) -> bytes:
        content = self.stream.read(min(size, self.left + 1))
        self.left -= len(content)
        if self.left < 0:
            raise damaged(self.path, "decompresses to more than the archive can hold")
        return content


def members(archive: Path, wanted: Callable[[str], bool], *, cap: int) -> Iterator[tuple[str, IO[bytes]]]:
    """The wanted files of a tar archive, each once, as a stream that is read before the next.

    A wanted name that is a link, a device or a folder, or that comes twice, is refused; members with other names are
    skipped unread.

    Args:
        archive: The path of the archive, compressed by gzip or bzip2 or not at all.
        wanted: Whether a name inside the archive is wanted.
        cap: How many bytes are decompressed at the most.

    Returns:
        Pairs of a name and its stream.
    """
    require_file(archive, "put the archive there")
    seen: set[str] = set()
    with reading(archive), _OPENERS.get(archive.suffix, open)(archive, "rb") as raw:
        capped = _Capped(raw, archive, cap)
        with tarfile.open(fileobj=capped, mode="r|") as tar:  # type: ignore[call-overload]
            for member in tar:
                if not wanted(member.name):
                    continue
                stream = tar.extractfile(member) if member.isreg() else None
                if stream is None or member.name in seen:
                    raise damaged(archive, f"holds {member.name} as a link, twice, or not as a plain file")
                seen.add(member.name)
                yield member.name, stream
        while capped.read(_CHUNK):  # to the end, where the compressed stream keeps its own checksum
            pass
