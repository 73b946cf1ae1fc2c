"""Disks that refuse, and people that interrupt: one clear error, a documented exit code, and nothing lost."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

from progfed import rng
from progfed.errors import ProgfedError, StorageError
from progfed.runs import checkpoint
from progfed.runs.directory import RunDirectory
from progfed.runs.train import train
from reliability import expect
from reliability.cases import Case, outcome, plain
from reliability.kills import finish, forked, prepare

NOBODY = 65534


def coded(action: Callable[[], object], notes: Path) -> None:
    """Do this and exit as the command line would: the code of the error, its sentence in the notes."""
    try:
        action()
    except ProgfedError as error:
        notes.write_text(str(error))
        sys.exit(error.exit_code)


def full_disks(count: int, folder: Path, *, seed: int = 0) -> int:
    """Runs on a disk that is full after some bytes; how often it was. The limit is the kernel's, on every file."""
    prepare()
    made, draw = plain(), Random(rng.number(seed, "full"))
    finish(made, folder / "whole")
    largest = max(path.stat().st_size for path in (folder / "whole").rglob("*") if path.is_file())
    refused = 0
    for number in range(count):
        limit = draw.randrange(1, largest + 1)
        refused += _limited(made, folder, limit, f"disk full after {limit} bytes (number {number}, seed {seed})")
    return refused


def _limited(case: Case, folder: Path, limit: int, where: str) -> bool:
    tried, notes = folder / "tried", folder / "notes"

    def child() -> None:
        coded(lambda: _with_limit(lambda: finish(case, tried), limit), notes)

    notes.write_text("")
    code = forked(child, notes=notes)
    expect(code in (0, StorageError.exit_code), f"{where}: exit code {code}, {_text(notes)}")
    expect(code == 0 or "cannot be written (File too large)" in _text(notes), f"{where}: it was told {_text(notes)}")
    written = len(RunDirectory(tried).records()) if (tried / "rounds.jsonl").exists() else 0
    found = checkpoint.load(tried / "checkpoint")
    expect((found.round if found else 0) <= written, f"{where}: a checkpoint without its records")
    finish(case, tried)
    expect(outcome(tried) == outcome(folder / "whole"), f"{where}: the run ended with other bits")
    shutil.rmtree(tried)
    return code != 0


def _with_limit(action: Callable[[], None], limit: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        action()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def read_only(folder: Path) -> str:
    """A run in a folder that may not be written, before and after it was begun; the sentence that says so."""
    prepare()
    made, tried, notes = plain(), folder / "tried", folder / "notes"
    forked(lambda: _stopped(made, tried), notes=notes)
    before = _tree(tried)
    for path in (tried, *(path for path in tried.rglob("*") if path.is_dir())):
        path.chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    notes.write_text("")
    notes.chmod(0o666)
    code = forked(lambda: _unprivileged(lambda: coded(lambda: finish(made, tried), notes)), notes=notes)
    for path in (tried, *(path for path in tried.rglob("*") if path.is_dir())):
        path.chmod(0o755)
    expect(code == StorageError.exit_code, f"a read-only folder: exit code {code}, {_text(notes)}")
    expect(_tree(tried) == before, "a read-only folder was changed")
    finish(made, tried)
    return _text(notes)


def _stopped(case: Case, folder: Path, rounds: int = 2) -> None:
    for record in train(case.experiment, folder, data=folder):
        if record["round"] == rounds:
            return


def _unprivileged(action: Callable[[], None]) -> None:
    """Root may write anything: be somebody else."""
    if os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    action()


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _text(notes: Path) -> str:
    return notes.read_text().strip() if notes.exists() else "no reason left"
