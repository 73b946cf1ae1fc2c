"""Checkpoints that survive a crash at any instant: written aside, synced, renamed into place, verified when read.

A checkpoint is a directory `round-N` with safetensors files, `state.json` and, written last, `manifest.json` with the
SHA-256 of the others. The last two are kept; the newest that verifies is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors

from progfed.errors import StorageError
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
    writing, final = root / "writing", root / f"round-{checkpoint.round:08d}"
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir(parents=True)
    files = {f"{name}.safetensors": to_bytes(tensors) for name, tensors in checkpoint.tensors.items()}
    files["state.json"] = _json({"format": FORMAT, "round": checkpoint.round, **checkpoint.state})
    for name, data in files.items():
        write_synced(writing / name, data)
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    write_synced(writing / "manifest.json", _json({"format": FORMAT, "sha256": digests}))
    sync_directory(writing)
    if final.exists():
        shutil.rmtree(final)
    os.rename(writing, final)
    sync_directory(root)
    for old in _found(root)[KEEP:]:
        shutil.rmtree(old)


def load(root: Path) -> Checkpoint | None:
    """The newest checkpoint that verifies; None where there is none at all."""
    problems: list[str] = []
    for path in _found(root):
        try:
            return _read(path)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            problems.append(f"{path.name}: {error}")
    if problems:
        raise StorageError(f"no checkpoint in {root} can be read ({'; '.join(problems)}): start over with --fresh")
    return None


def to_bytes(tensors: Tensors) -> bytes:
    """Tensors as a safetensors file; the bytes depend on names and values only."""
    return save_safetensors({name: tensors[name].detach().contiguous() for name in sorted(tensors)})


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and wait until the disk has it."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a crash, finds the old content or the new, never a part."""
    aside = path.with_name(f".{path.name}.writing")
    write_synced(aside, data)
    os.replace(aside, path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames in a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _found(root: Path) -> list[Path]:
    return sorted(root.glob("round-*"), reverse=True)


def _read(path: Path) -> Checkpoint:
    manifest = json.loads((path / "manifest.json").read_bytes())
    if manifest["format"] != FORMAT:
        raise ValueError(f"format {manifest['format']}, this version reads format {FORMAT}")
    files = {name: (path / name).read_bytes() for name in manifest["sha256"]}
    for name, data in files.items():
        if hashlib.sha256(data).hexdigest() != manifest["sha256"][name]:
            raise ValueError(f"{name} does not match its digest")
    state = json.loads(files.pop("state.json"))
    tensors = {name.removesuffix(".safetensors"): load_safetensors(data) for name, data in files.items()}
    return Checkpoint(state["round"], tensors, state)


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode()
