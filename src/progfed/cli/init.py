"""`progfed init`: a complete Flower app to start from."""

from __future__ import annotations

import re
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer

from progfed.cli.options import Json
from progfed.cli.output import print_json
from progfed.errors import StorageError


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the new app.")],
    as_json: Json = False,
) -> None:
    """Write a Flower app with a model and data to replace by your own, ready to run."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StorageError(f"{folder} is there and not empty: name a new folder")
    name = re.sub(r"[^a-z0-9]+", "-", folder.absolute().name.lower()).strip("-") or "app"
    written = []
    with as_file(files("progfed") / "templates" / "app") as template:
        for source in sorted(path for path in template.rglob("*") if _wanted(path)):
            target = folder / source.relative_to(template).with_suffix("" if source.suffix == ".in" else source.suffix)
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(source.read_text().replace("@NAME@", name))
            except OSError as error:
                raise StorageError(f"{target} cannot be written: {error.strerror}") from error
            written.append(str(target))
    if as_json:
        print_json({"files": written})
        return
    print(f"{folder}: your model and data go into {folder / 'fedapp' / 'experiment.py'}")
    print(f"try it:  progfed run {folder / 'fedapp' / 'experiment.py'}")


def _wanted(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts
