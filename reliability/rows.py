"""The trials by name, with a small and a large count: what the self-test and `make chaos` run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from reliability import TrialFailed, expect, workspace
from reliability.broken_files import broken_files
from reliability.clients import dropouts, sieges
from reliability.fuzz import outcomes
from reliability.hostile import hostile_messages
from reliability.interrupts import interruptions
from reliability.kills import point_kills, prepare, random_kills
from reliability.power import power_losses
from reliability.steady import endurance, same_bits
from reliability.storage import full_disks, read_only
from reliability.variety import KINDS, Kinds, stopped_and_continued

RATES = (0.0, 0.1, 0.3, 0.5)


@dataclass(frozen=True)
class Job:
    """How much to do: a count, a folder for it, a seed, and the time of the monotonic clock at which to stop."""

    count: int
    folder: Path
    seed: int
    until: float


@dataclass(frozen=True)
class Row:
    """A trial: its counts, and what does it. A count of 0 leaves it out."""

    name: str
    small: int
    large: int
    unit: str
    run: Callable[[Job], int]


@dataclass(frozen=True)
class Outcome:
    """What came of a row: how much was done of what was asked, in which time, and what broke."""

    row: str
    asked: int
    done: int
    unit: str
    seed: int
    seconds: float
    failure: str = ""

    def line(self) -> str:
        """One line for people."""
        result = f"FAILED: {self.failure}" if self.failure else "ok"
        short = "" if self.failure or self.done >= self.asked else f" of {self.asked:,} (out of time)"
        return f"{self.row:<34} {self.done:>9,} {self.unit}{short}, seed {self.seed}, {self.seconds:.1f} s: {result}"


def rows(main: Callable[[], None]) -> tuple[Row, ...]:
    """All trials; `main` is the command line, for the one that interrupts it."""
    return (
        Row("SIGKILL at random moments", 20, 1000, "kills", _kills),
        Row("SIGKILL at every named point", 1, 4, "times each", _points),
        Row("power loss", 200, 5000, "crashes", lambda job: power_losses(job.count, job.folder, seed=job.seed)),
        Row("hostile messages", 20_000, 1_000_000, "messages", _hostile),
        Row("rounds under hostile messages", 1, 20, "runs", _sieges),
        Row("broken data files", 42, 500, "files", _files),
        *(Row(name, 4, 100, "runs", partial(_variety, kinds)) for name, kinds in KINDS.items()),
        Row("fuzzing every parser", 30, 3_000, "inputs each", _fuzzed),
        Row("drop-out of 0, 10, 30 and 50 %", 1, 10, "runs each", _dropouts),
        Row("one worker and two: same bits", 1, 4, "models", lambda job: same_bits(job.count)),
        Row("disk full", 3, 20, "runs", _full),
        Row("read-only folder", 1, 2, "runs", _read_only),
        Row("Ctrl-C once, twice, SIGTERM", 8, 32, "runs", lambda job: _interrupts(job, main)),
        Row("memory and open files", 0, 10_000, "rounds", _endurance),
    )


def perform(chosen: tuple[Row, ...], *, large: bool, seed: int, seconds: float) -> Iterator[Outcome]:
    """Run rows one after the other, each for at most so many seconds where it can be cut short."""
    prepare()
    for row in chosen:
        count = row.large if large else row.small
        if not count:
            continue
        began, done, failure = time.monotonic(), 0, ""
        with workspace() as folder:
            try:
                done = row.run(Job(count, folder, seed, began + seconds))
            except TrialFailed as error:
                failure = str(error)
        yield Outcome(row.name, count, done, row.unit, seed, time.monotonic() - began, failure)


def _kills(job: Job) -> int:
    return random_kills(job.count, job.folder, seed=job.seed, until=job.until)


def _points(job: Job) -> int:
    point_kills(job.folder, times=job.count, seed=job.seed)
    return job.count


def _hostile(job: Job) -> int:
    return hostile_messages(job.count, seed=job.seed, until=job.until)


def _sieges(job: Job) -> int:
    for number in range(job.count):
        sieges(seed=job.seed + number)
    return job.count


def _files(job: Job) -> int:
    broken_files(job.count, job.folder, seed=job.seed)
    return job.count


def _variety(kinds: Kinds, job: Job) -> int:
    (job.folder / "data").mkdir()
    return stopped_and_continued(kinds(job.folder / "data"), job.count, job.folder / "runs", seed=job.seed)


def _fuzzed(job: Job) -> int:
    seconds = job.until - time.monotonic()
    found = list(outcomes(job.folder, seconds=seconds / 25, most=job.count, seed=job.seed))
    expect(not any(wrong for _, _, wrong in found), "; ".join(f"{name}: {wrong}" for name, _, wrong in found if wrong))
    return min(done for _, done, _ in found)


def _dropouts(job: Job) -> int:
    for number in range(job.count):
        for rate in RATES:
            dropouts(rate, seed=job.seed + number)
    return job.count


def _full(job: Job) -> int:
    full_disks(job.count, job.folder, seed=job.seed)
    return job.count


def _read_only(job: Job) -> int:
    for number in range(job.count):
        (job.folder / str(number)).mkdir()
        read_only(job.folder / str(number))
    return job.count


def _interrupts(job: Job, main: Callable[[], None]) -> int:
    return interruptions(job.count, job.folder, main, seed=job.seed)


def _endurance(job: Job) -> int:
    slope, files = endurance(job.count, job.folder / "run")
    expect(slope < 2**20, f"memory grows by {slope / 2**20:.2f} MB in 1,000 rounds")
    expect(files == 0, f"{files} more files are open at the end")
    return job.count
