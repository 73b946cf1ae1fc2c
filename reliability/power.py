"""Power that fails: what a run does to its files is recorded, and what a disk may hold afterwards is made of a part.

The model of the disk is the strict one of POSIX: a file's content is safe only after its own fsync, and a name in a
folder only after the fsync of that folder. Of what was not synced, nothing survives, or a part, or all.
"""

from __future__ import annotations

import builtins
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from progfed import files, rng
from progfed.runs import checkpoint, directory
from progfed.runs.directory import opened
from progfed.runs.identity import describe, identity
from progfed.runs.resume import resume
from progfed.wire.engine import ClientState
from progfed.wire.message import model_digest
from reliability import expect
from reliability.cases import Case, outcome, plain
from reliability.kills import finish

Event = tuple[Any, ...]


@dataclass
class Trace:
    """What a run did under `root`: file operations, and `("commit", round)` where a checkpoint was promised to last."""

    root: Path
    events: list[Event] = field(default_factory=list)
    models: dict[int, bytes] = field(default_factory=dict)

    def add(self, kind: str, path: Any, *more: Any) -> None:
        """Note an operation on a path below the root; paths elsewhere are not of interest."""
        with suppress(ValueError):
            self.events.append((kind, str(Path(path).relative_to(self.root)), *more))


class Recorded:
    """A file whose writes are noted."""

    def __init__(self, file: Any, path: str, trace: Trace) -> None:
        self._file, self._path, self._trace = file, path, trace

    def write(self, data: bytes) -> int:
        self._trace.add("write", self._path, bytes(data))
        return int(self._file.write(data))

    def truncate(self) -> int:
        self._trace.add("truncate", self._path, self._file.tell())
        return int(self._file.truncate())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Recorded:
        return self

    def __exit__(self, *why: object) -> None:
        self._file.close()


@contextmanager
def recording(root: Path) -> Iterator[Trace]:
    """Note every file operation of this process below `root` inside the block."""
    trace = Trace(root)
    patches: list[tuple[Any, str, Any]] = []

    def patch(owner: Any, name: str, make: Callable[[Any], Any], real: Any = None) -> None:
        real = real or getattr(owner, name)
        patches.append((owner, name, owner.__dict__.get(name)))
        setattr(owner, name, make(real))

    def noting(kind: str, place: Callable[[Any], Any] = lambda path: path) -> Callable[[Any], Any]:
        def make(real: Any) -> Any:
            def call(path: Any, *rest: Any, **options: Any) -> Any:
                where = place(path)
                result = real(path, *rest, **options)
                trace.add(kind, where, *(str(item) for item in rest[:1] if isinstance(item, str | Path)))
                return result

            return call

        return make

    def opening(real: Any) -> Any:
        def call(path: Any, mode: str = "r", **options: Any) -> Any:
            if "r" not in mode and (mode != "ab" or not Path(path).exists()):
                trace.add("create", path)
            return Recorded(real(path, mode, **options), str(path), trace)

        return call

    def saving(real: Any) -> Any:
        def call(where: Path, saved: checkpoint.Checkpoint) -> None:
            trace.models[saved.round] = model_digest(saved.tensors["model"])
            real(where, saved)
            trace.events.append(("commit", saved.round))

        return call

    def removing(real: Any) -> Any:
        def call(path: Any, **options: Any) -> None:
            for file in sorted(Path(path).iterdir()) if Path(path).is_dir() else []:
                trace.add("unlink", file)
            if Path(path).is_dir():
                trace.add("unlink", path)
            real(path, **options)

        return call

    patch(os, "fsync", noting("fsync", lambda handle: os.readlink(f"/proc/self/fd/{handle}")))
    patch(os, "rename", noting("rename"))
    patch(os, "replace", noting("rename"))
    patch(os, "mkdir", noting("mkdir"))
    patch(shutil, "rmtree", removing)
    patch(files, "open", opening, builtins.open)
    patch(directory, "open", opening, builtins.open)
    patch(checkpoint, "save", saving)
    try:
        yield trace
    finally:
        for owner, name, before in reversed(patches):
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


@dataclass
class File:
    """A file's content now, and what of it is safe."""

    now: bytes = b""
    safe: bytes = b""


@dataclass
class Folder:
    """A folder's names now, those that are safe, and the states in between, oldest first."""

    now: dict[str, File | Folder] = field(default_factory=dict)
    safe: dict[str, File | Folder] = field(default_factory=dict)
    between: list[dict[str, File | Folder]] = field(default_factory=list)

    def set(self, name: str, node: File | Folder | None) -> None:
        """Give a name to a node, or take it away."""
        self.now = {key: value for key, value in self.now.items() if key != name} | ({name: node} if node else {})
        self.between.append(self.now)


def replay(events: list[Event]) -> Folder:
    """The disk after these operations."""
    root = Folder()
    for kind, path, *more in events:
        if kind == "commit" or (kind, path) == ("mkdir", "."):
            continue
        parent, name = _find(root, Path(path).parent), Path(path).name
        node = root if path == "." else parent.now.get(name)
        if kind == "create":
            parent.set(name, node if isinstance(node, File) else File())
            _file(parent.now[name]).now = b""
        elif kind == "write":
            _file(node).now += more[0]
        elif kind == "truncate":
            _file(node).now = _file(node).now[: more[0]]
        elif kind == "mkdir":
            parent.set(name, Folder())
        elif kind == "unlink":
            parent.set(name, None)
        elif kind == "rename":
            parent.now = {key: value for key, value in parent.now.items() if key != name}
            parent.set(Path(more[0]).name, node)  # one step: a rename is atomic
        elif kind == "fsync" and isinstance(node, File):
            node.safe = node.now
        elif kind == "fsync" and isinstance(node, Folder):
            node.safe, node.between = node.now, []
    return root


def _find(root: Folder, path: Path) -> Folder:
    for name in path.parts:
        found = root.now[name]
        assert isinstance(found, Folder)
        root = found
    return root


def _file(node: File | Folder | None) -> File:
    assert isinstance(node, File)
    return node


def survive(folder: Folder, path: Path, draw: Random, luck: float) -> None:
    """Write to `path` what is found after the crash: what is safe, and with some luck more."""
    path.mkdir(exist_ok=True)
    names = draw.choice(folder.between) if folder.between and draw.random() < luck else folder.safe
    for name, node in names.items():
        if isinstance(node, Folder):
            survive(node, path / name, draw, luck)
            continue
        content = node.safe
        if node.now != node.safe and draw.random() < luck:
            # an append does not endanger what was there before it
            kept = len(node.safe) if node.now.startswith(node.safe) else 0
            content = node.now[: draw.randint(kept, len(node.now))] if draw.random() < 0.5 else node.now
        (path / name).write_bytes(content)


def power_losses(count: int, folder: Path, *, seed: int = 0, finished: int = 25) -> int:
    """Power lost after every operation of a run in turn, again and again with other luck, `count` times.

    What was committed must load, or what came after; every `finished`-th run is trained to its end and compared.
    """
    made = plain()
    with recording(folder / "whole") as trace:
        finish(made, folder / "whole")
    draw = Random(rng.number(seed, "power"))
    for number in range(count):
        prefix = trace.events[: number % len(trace.events) + 1]
        luck = 0.0 if number < len(trace.events) else draw.choice((0.0, 0.3, 0.7, 1.0))
        found = folder / "found"
        survive(replay(prefix), found, draw, luck)
        where = f"power lost after operation {len(prefix)} of {len(trace.events)} {prefix[-1][:2]} (seed {seed})"
        _check(made, found, trace, prefix, where)
        if number % finished == 0:
            finish(made, found)
            expect(outcome(found) == outcome(folder / "whole"), f"{where}: the run ended with other bits")
        shutil.rmtree(found)
    return count


def _check(case: Case, found: Path, trace: Trace, prefix: list[Event], where: str) -> None:
    committed = max((event[1] for event in prefix if event[0] == "commit"), default=0)
    client_states: dict[int, ClientState] = {}
    with opened(found) as directory:
        directory.claim(describe(case.experiment))
        if (summary := directory.read("summary.json")) is not None:
            model = (found / "model.safetensors").read_bytes()
            expect(bool(summary["model_sha256"]) and bool(model), f"{where}: a summary without its model")
        try:
            progress = resume(directory, identity(case.experiment), client_states)
        except Exception as error:
            expect(False, f"{where}: nothing loads: {error}")
            raise
    loaded = progress.round if progress else 0
    expect(loaded >= committed, f"{where}: round {committed} was committed, round {loaded} is found")
    if progress:
        expect(model_digest(progress.params) == trace.models[loaded], f"{where}: round {loaded} has other weights")
