"""Checkpoints that survive a crash at any instant: written aside, synced, renamed into place, verified when read.

A checkpoint is a directory `round-N` with safetensors files, `state.json` and, written last, `manifest.json` with the
SHA-256 of the others. The last two are kept; the newest that verifies is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors

from progfed.errors import StorageError
from progfed.files import make_directory, read_regular, storing, sync_directory, write_synced
from progfed.tensors import Tensors

FORMAT = 1
KEEP = 2


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by file (`model`, `server`, …), and the plain values that go with them."""

    round: int
    tensors: dict[str, Tensors]
    state: dict[str, Any]


def save(root: Path, checkpoint: Checkpoint) -> None:
    """Commit a checkpoint: after this returns it survives a power loss; before, the previous one does."""
    files = {f"{name}.safetensors": to_bytes(tensors) for name, tensors in checkpoint.tensors.items()}
    files["state.json"] = _json({"format": FORMAT, "round": checkpoint.round, **checkpoint.state})
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    files["manifest.json"] = _json({"format": FORMAT, "sha256": digests})
    writing, final = root / "writing", root / f"round-{checkpoint.round:08d}"
    with storing(root):
        make_directory(root)
        try:
            shutil.rmtree(writing, ignore_errors=True)
            writing.mkdir()
            for name, data in files.items():  # the manifest last
                write_synced(writing / name, data)
            sync_directory(writing)
            if final.exists():
                shutil.rmtree(final)
            os.rename(writing, final)
        except OSError:
            shutil.rmtree(writing, ignore_errors=True)  # a full disk has better uses for the space
            raise
        sync_directory(root)
        _drop_others(root, final)


def _drop_others(root: Path, final: Path) -> None:
    """Keep this checkpoint and those before it, `KEEP` in all. One of a later round can only be a damaged one that was
    passed over when the run went on from an earlier one: it must not push out a valid one."""
    found = _found(root)
    kept = found[found.index(final) :][:KEEP]
    for other in found:
        if other not in kept:
            shutil.rmtree(other)


def load(root: Path) -> Checkpoint | None:
    """The newest checkpoint that verifies; None where there is none at all."""
    problems: list[str] = []
    for path in _found(root):
        try:
            return _read(path)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
            problems.append(f"{path.name}: {error}")
    if problems:
        raise StorageError(f"no checkpoint in {root} can be read ({'; '.join(problems)}): start over with --fresh")
    return None


def to_bytes(tensors: Tensors) -> bytes:
    """Tensors as a safetensors file; the bytes depend on names and values only."""
    return save_safetensors({name: tensors[name].detach().contiguous() for name in sorted(tensors)})


def _found(root: Path) -> list[Path]:
    """Checkpoints, the latest round first."""
    numbered = [path for path in root.glob("round-*") if re.fullmatch(r"round-[0-9]{8,}", path.name)]
    return sorted(numbered, key=lambda path: int(path.name.removeprefix("round-")), reverse=True)


def _read(path: Path) -> Checkpoint:
    manifest = json.loads(read_regular(path / "manifest.json"))
    if manifest["format"] != FORMAT:
        raise ValueError(f"format {manifest['format']}, this version reads format {FORMAT}")
    names = [name for name in manifest["sha256"] if Path(name).name == name]  # a manifest must not lead elsewhere
    files = {name: read_regular(path / name) for name in names}
    for name, data in files.items():
        if hashlib.sha256(data).hexdigest() != manifest["sha256"][name]:
            raise ValueError(f"{name} does not match its digest")
    state = json.loads(files.pop("state.json"))
    tensors = {name.removesuffix(".safetensors"): load_safetensors(data) for name, data in files.items()}
    return Checkpoint(state["round"], tensors, state)


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode()
