"""Getting the files of a data set, from its public address or from a folder: complete and verified, or not at all.

A file is written under a temporary name beside its place, hashed, flushed to disk, and renamed; whatever goes wrong
before that leaves the place as it was and no temporary file behind.
"""

from __future__ import annotations

import fnmatch
import http.client
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from progfed.data.archives import members
from progfed.data.integrity import MEGABYTE, check_file, damaged, reading, require_file
from progfed.data.inventory import DataSet, Download, File, check
from progfed.errors import DataError
from progfed.files import sync_directory

Progress = Callable[[str, int, int | None], None]
"""File name, bytes so far, bytes in all if known."""

_TIMEOUT = 30.0


def fetch(data: DataSet, root: Path, *, source: Path | None = None, progress: Progress | None = None) -> list[Path]:
    """Bring a data set's files under `root`; files that are intact there already are left alone.

    Args:
        data: The data set.
        root: The folder of data.
        source: A folder to take the files from, in the layout of a root or as the archives of the public address; None:
            they are downloaded.
        progress: Called as bytes arrive, with a file's name, the bytes so far and those in all.

    Returns:
        The paths of the files. Where they cannot be had, the error says which file to put where.
    """
    if check(data, root).state == "intact":
        return []
    report = progress or (lambda name, done, total: None)
    if source is not None:
        return _from_folder(data, root, source, report)
    if not data.downloads:
        raise DataError(
            f"{data.name} has no public address ({data.terms}): get it from {data.homepage} and put {data.place(root)}"
        )
    return [path for download in data.downloads for path in _download(data, download, root, report)]


def _download(data: DataSet, download: Download, root: Path, progress: Progress) -> list[Path]:
    request = urllib.request.Request(download.address, headers={"User-Agent": "progfed"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
            total = int(response.headers.get("Content-Length") or 0) or None
            return _install(response, download, root, lambda done: progress(download.file.path, done, total))
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        if isinstance(error, urllib.error.HTTPError):  # the refusal came with a page, whose connection is still open
            error.close()
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"{download.address} cannot be downloaded ({reason}): get the file elsewhere, put it into a folder, "
            f"and run `progfed data fetch {data.name} --from FOLDER`; or put {data.place(root)}"
        ) from error


def _from_folder(data: DataSet, root: Path, source: Path, progress: Progress) -> list[Path]:
    for form in data.forms:
        if all((source / file.path).exists() for file in form):
            if (found := check(data, source)).state == "damaged":
                raise DataError(found.detail)
            return [path for file in form for path in _copy(source / file.path, file, root, progress)]
    flat = [Download("", file) for file in data.forms[0]]
    for downloads in (data.downloads, flat):
        paths = [source / Path(download.file.path).name for download in downloads]
        if paths and all(path.is_file() for path in paths):
            return [
                placed
                for path, download in zip(paths, downloads, strict=True)
                for placed in _place(path, download, root, progress)
            ]
    wanted = data.place(source) + "".join(f" or {source / Path(d.file.path).name}" for d in data.downloads[:1])
    raise DataError(f"{source} does not hold {data.name}: put there {wanted}")


def _copy(path: Path, file: File, root: Path, progress: Progress) -> Iterator[Path]:
    if not path.is_dir():
        yield from _place(path, Download("", file), root, progress)
        return
    for inner in sorted(path.rglob("*")):
        if inner.is_file() and not inner.name.startswith("."):
            inside = File(f"{file.path}/{inner.relative_to(path).as_posix()}")
            yield from _place(inner, Download("", inside), root, progress)


def _place(path: Path, download: Download, root: Path, progress: Progress) -> list[Path]:
    total = require_file(path, "put it there")
    with path.open("rb") as stream:
        return _install(stream, download, root, lambda done: progress(download.file.path, done, total))


def _install(stream: IO[bytes], download: Download, root: Path, progress: Callable[[int], None]) -> list[Path]:
    """Write a stream to its place, or the members of an archive to theirs, once its hash is right."""
    target = root / download.file.path
    with _temporary(target) as part, _named(part, target):
        _write(stream, part, download.cap, target, progress)
        if download.file.digest is not None:
            check_file(part, download.file.digest, unzip=download.file.unzip, cap=download.cap)
        if download.members:
            return _unpack(part, download, root)
        part.replace(target)
    sync_directory(target.parent)
    return [target]


def _unpack(archive: Path, download: Download, root: Path) -> list[Path]:
    placed = []
    for name, stream in members(archive, lambda name: _target(name, download) is not None, cap=download.cap):
        target = root / str(_target(name, download))
        with _temporary(target) as part:
            with reading(archive):
                _write(stream, part, download.cap, target, lambda done: None)
            part.replace(target)
        placed.append(target)
    if len(placed) < len(download.members):
        raise damaged(archive, f"does not hold {', '.join(download.members)}")
    for folder in {target.parent for target in placed}:
        sync_directory(folder)
    return placed


def _target(name: str, download: Download) -> str | None:
    """Where a member of an archive goes: a path of the catalog; of the member's name only a plain last part is used."""
    if name in download.members:
        return download.members[name]
    last = PurePosixPath(name).name
    for pattern, folder in download.members.items():
        plain = name == pattern.removesuffix("*") + last and not last.startswith(".")
        if pattern.endswith("/*") and plain and fnmatch.fnmatchcase(last, "*.nii.gz"):
            return f"{folder}/{last}"
    return None


@contextmanager
def _named(part: Path, target: Path) -> Iterator[None]:
    """Let errors inside the block name the file that the user knows, not the temporary one."""
    try:
        yield
    except DataError as error:
        raise DataError(str(error).replace(str(part), f"what came for {target}")) from error


def _write(stream: IO[bytes], part: Path, cap: int, target: Path, progress: Callable[[int], None]) -> None:
    done = 0
    with part.open("wb") as out:
        while chunk := stream.read(MEGABYTE):
            done += len(chunk)
            if done > cap:
                raise damaged(target, f"would take more than the {cap:,} bytes it can have")
            out.write(chunk)
            progress(done)
        out.flush()
        os.fsync(out.fileno())


@contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """A path beside the target to write to; removed afterwards unless it was renamed, with the folders made for it."""
    made = [folder for folder in (target.parent, *target.parent.parents) if not folder.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".fetch-", suffix=target.suffix)
    except OSError as error:
        raise DataError(
            f"{target.parent} cannot be written ({error.strerror}): choose another --data folder"
        ) from error
    os.close(handle)
    part = Path(name)
    part.chmod(0o644)  # readable like any other file: temporary ones are not
    try:
        yield part
    except OSError as error:
        if isinstance(error, urllib.error.URLError | TimeoutError | ConnectionError):
            raise
        raise DataError(
            f"{target} cannot be written ({error.strerror or error}): free space, or choose another folder"
        ) from error
    finally:
        part.unlink(missing_ok=True)
        for folder in made:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
