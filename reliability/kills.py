"""Processes that are killed: at a random moment, or at a named point of saving; the run must end as if nothing were.

Children are forked from this process, which has everything imported: several kills a second instead of one in several.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from progfed import files, rng
from progfed.runs import checkpoint, directory, train
from reliability import expect
from reliability.cases import Case, case, outcome, plain


def prepare() -> None:
    """Import once what every child would otherwise import again, and compute on one thread: pools do not survive."""
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")


def finish(case: Case, folder: Path) -> None:
    """Train a case to its end, from wherever it stands."""
    for _ in train.train(case.experiment, folder, data=folder, workers=case.workers, checkpoint_every=case.every):
        pass


def forked(action: Callable[[], Any], *, notes: Path, seconds: float | None = None) -> int:
    """Do this in a child, killed after so many seconds; its exit code, or minus the signal that ended it.

    What goes wrong in the child is written to `notes`.
    """

    def child() -> None:
        try:
            action()
        except SystemExit:
            raise
        except BaseException:
            notes.write_text(traceback.format_exc())
            os._exit(70)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
    code = process.exitcode
    process.close()
    assert code is not None
    return code


def random_kills(count: int, folder: Path, *, seed: int = 0, until: float = float("inf")) -> int:
    """SIGKILL at random moments, `count` times or until this time of the monotonic clock; how many there were."""
    prepare()
    killed = number = 0
    while killed < count and time.monotonic() < until:
        made = case(number, seed=seed)
        whole, tried = folder / "whole", folder / "tried"
        began = time.monotonic()
        _complete(made, whole, folder)
        length = time.monotonic() - began
        moments = rng.numpy_generator(seed, "kills", number)
        while not (tried / "summary.json").exists():
            code = forked(lambda: finish(made, tried), notes=folder / "notes", seconds=moments.uniform(0, length))  # noqa: B023
            expect(code in (0, -signal.SIGKILL), f"{made.label}: a continued run failed: {_notes(folder)}")
            killed += code == -signal.SIGKILL
            if moments.uniform() < 0.3 or killed >= count:
                _complete(made, tried, folder)
        expect(outcome(tried) == outcome(whole), f"{made.label}: a killed run ended with other bits")
        shutil.rmtree(whole)
        shutil.rmtree(tried)
        number += 1
    return killed


def _complete(case: Case, tried: Path, folder: Path) -> None:
    code = forked(lambda: finish(case, tried), notes=folder / "notes")
    expect(code == 0, f"{case.label}: a run failed: {_notes(folder)}")


def _notes(folder: Path) -> str:
    path = folder / "notes"
    return path.read_text().strip().splitlines()[-1] if path.exists() else "no reason left"


Die = Callable[[], None]


def _before(owner: Any, name: str, *, when: Callable[..., bool] = lambda *_: True) -> Callable[[Die], None]:
    def patch(die: Die) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            if when(*args):
                die()
            return real(*args, **options)

        setattr(owner, name, call)

    return patch


def _after(owner: Any, name: str, *, when: Callable[..., bool] = lambda *_: True) -> Callable[[Die], None]:
    def patch(die: Die) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            result = real(*args, **options)
            if when(*args):
                die()
            return result

        setattr(owner, name, call)

    return patch


def _partly(die: Die) -> None:
    """Files are written to a half, then death."""
    real = files.write_synced

    def write(path: Path, data: bytes, **options: Any) -> None:
        path.write_bytes(data[: len(data) // 2])
        die()
        real(path, data, **options)

    files.write_synced = write


def _mid_line(die: Die) -> None:
    real = directory.Log.append

    def append(log: directory.Log, record: directory.Record) -> None:
        log._file.write(b'{"round": ')
        die()
        log._file.seek(-10, os.SEEK_END)
        log._file.truncate()
        real(log, record)

    directory.Log.append = append  # type: ignore[method-assign,assignment]


def _named(name: str) -> Callable[..., bool]:
    return lambda path, *_: Path(path).name == name


POINTS: dict[str, Callable[[Die], None]] = {
    "half of a file written": _partly,
    "a file written, before its fsync": _before(os, "fsync"),
    "after an fsync": _after(os, "fsync"),
    "between model and manifest": _before(checkpoint, "write_synced", when=_named("manifest.json")),
    "after the manifest": _after(checkpoint, "write_synced", when=_named("manifest.json")),
    "before the rename of a checkpoint": _before(os, "rename"),
    "after the rename of a checkpoint": _after(os, "rename"),
    "before a file is replaced": _before(os, "replace"),
    "after a file is replaced": _after(os, "replace"),
    "before old checkpoints are dropped": _before(checkpoint, "_drop_others"),
    "in the middle of a line": _mid_line,
    "after a line, before its fsync": _before(directory.Log, "sync"),
    "before the records are cut": _before(directory.RunDirectory, "cut"),
    "in the middle of a growth": _after(importlib.import_module("progfed.server.loop"), "grow"),
    "between the model and the summary": _before(
        directory.RunDirectory, "write", when=lambda _, name, *__: name == "summary.json"
    ),
}


def point_kills(folder: Path, *, times: int = 1, seed: int = 0) -> int:
    """Death at every named point, in `times` of its occurrences; how many there were."""
    prepare()
    made, killed = plain(), 0
    _complete(made, folder / "whole", folder)
    for name, patch in POINTS.items():
        for occurrence in range(times):
            tried = folder / "tried"
            code = forked(lambda: _dying(made, tried, patch, occurrence), notes=folder / "notes")  # noqa: B023
            killed += code == -signal.SIGKILL
            expect(code in (0, -signal.SIGKILL), f"dying {name}: {_notes(folder)}")
            expect(code != 0 or occurrence > 0, f"dying {name}: the run never came there")
            _complete(made, tried, folder)
            expect(outcome(tried) == outcome(folder / "whole"), f"dying {name}: the run ended with other bits")
            shutil.rmtree(tried)
    return killed


def _dying(case: Case, folder: Path, patch: Callable[[Die], None], occurrence: int) -> None:
    """Train until the patched point is reached for the `occurrence`-th time, counted in steps that spread them out."""
    left = [occurrence * (occurrence + 1) // 2]

    def die() -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1

    patch(die)
    finish(case, folder)
