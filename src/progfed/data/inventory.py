"""The files of a data set, and whether they are there and intact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from progfed.data.integrity import MEGABYTE, check_file
from progfed.errors import DataError
from progfed.population import FederatedData


@dataclass(frozen=True)
class File:
    """One file under the root, and its published hash if there is one; with `unzip`, of the decompressed content."""

    path: str
    digest: str | None = None
    unzip: bool = False


@dataclass(frozen=True)
class Download:
    """One file to fetch; an archive with `members` is unpacked to the paths given there, and is not kept.

    `members` maps the exact name inside the archive, or `folder/*` for the plain files of a folder, to a path under the
    root, or to a folder there. The archive's hash is checked before it is opened, and nothing else of it is used.
    """

    address: str
    file: File
    members: dict[str, str] = field(default_factory=dict)
    cap: int = 1024 * MEGABYTE


@dataclass(frozen=True)
class DataSet:
    """One data set: the forms its files can have on disk (the first that exists is used), its source, its terms."""

    name: str
    title: str
    terms: str
    size: str
    forms: tuple[tuple[File, ...], ...]
    load: Callable[..., FederatedData]
    homepage: str
    downloads: tuple[Download, ...] = ()
    inspect: Callable[[Path], str] | None = None
    natural: bool = False

    def place(self, root: Path) -> str:
        """A phrase that says where the files belong."""
        return " or ".join(_place([root / file.path for file in form]) for form in self.forms)


@dataclass(frozen=True)
class Found:
    """What is under a root: `missing`, `found` (not read), `intact`, or `damaged` with the reason."""

    name: str
    state: str
    detail: str


def _place(paths: list[Path]) -> str:
    folders = {path.parent for path in paths}
    if len(paths) == 1 or len(folders) > 1:
        return ", ".join(map(str, paths))
    return f"{folders.pop()}/{{{', '.join(path.name for path in paths)}}}"


def locate(data: DataSet, root: Path) -> Found:
    """Whether the files are there, without reading them."""
    form = _form(data, root)
    if form is None:
        return Found(data.name, "missing", f"put {data.place(root)}")
    return Found(data.name, "found", ", ".join(str(root / file.path) for file in form))


def check(data: DataSet, root: Path) -> Found:
    """Whether the files are there and intact: by their published hashes, or else by reading what is in them."""
    form = _form(data, root)
    if form is None:
        return locate(data, root)
    try:
        hashed = [file for file in form if file.digest is not None]
        for file in hashed:
            check_file(root / file.path, str(file.digest), unzip=file.unzip)
        detail = f"{len(hashed)} of {len(hashed)} hashes match" if hashed else ""
        if data.inspect is not None:
            detail = data.inspect(root)
    except DataError as error:
        return Found(data.name, "damaged", str(error))
    return Found(data.name, "intact", detail)


def _form(data: DataSet, root: Path) -> tuple[File, ...] | None:
    """The first form of which at least one file exists, so that an incomplete folder is reported as incomplete."""
    return next((form for form in data.forms if any((root / file.path).exists() for file in form)), None)
