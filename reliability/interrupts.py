"""Ctrl-C once, twice, and SIGTERM: the documented exit code, and a run that continues as if nothing had been."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

from progfed import rng
from reliability import expect
from reliability.cases import outcome
from reliability.kills import forked, prepare

INTERRUPTED = 130
PATIENCE = 60.0
"""Seconds after which a process that does not end has hung."""

EXPERIMENT = """
import time
from dataclasses import replace
from pathlib import Path
from reliability.cases import plain
from progfed.schedule import progressive

made = plain(schedule=progressive(40, stages=3, warmup=2)).experiment
stuck = Path({stuck!r})


def is_stuck():
    try:
        return Path({lines!r}).read_bytes().count(b"\\n") >= int(stuck.read_text())
    except FileNotFoundError:
        return False


def load(client, real=made.data.load):
    while is_stuck():
        stuck.with_name("held").touch()
        time.sleep(0.01)
    return real(client)


EXPERIMENT = replace(made, data=replace(made.data, load=load))
"""

Main = Callable[[], None]
WAYS: dict[str, tuple[int, ...]] = {
    "Ctrl-C once": (signal.SIGINT,),
    "Ctrl-C twice": (signal.SIGINT, signal.SIGINT),
    "SIGTERM": (signal.SIGTERM,),
    "SIGTERM, then Ctrl-C": (signal.SIGTERM, signal.SIGINT),
}


def interruptions(count: int, folder: Path, main: Main, *, seed: int = 0) -> int:
    """Interrupt the command line `count` times, in every way in turn, and continue; how many runs there were."""
    prepare()
    draw, file, stuck = Random(rng.number(seed, "interrupts")), folder / "experiment.py", folder / "stuck"
    whole, tried = (folder / name / "dense-seed1" for name in ("whole", "tried"))
    file.write_text(EXPERIMENT.format(stuck=str(stuck), lines=str(tried / "rounds.jsonl")))
    expect(forked(lambda: command(main, file, whole), notes=folder / "notes") == 0, "a run failed")
    for number in range(count):
        name, workers = list(WAYS)[number % len(WAYS)], 2 - number // len(WAYS) % 2
        run = partial(command, main, file, tried, workers=workers)
        code, text = _interrupted(run, tried, stuck, WAYS[name], draw.randrange(1, 30))
        where = f"{name}, {workers} workers (number {number}, seed {seed})"
        expect(code == INTERRUPTED, f"{where}: exit code {code}: {text}")
        expect("Traceback" not in text, f"{where}: {text}")
        expect(forked(lambda: command(main, file, tried), notes=folder / "notes") == 0, f"{where}: cannot be continued")
        expect(outcome(tried) == outcome(whole), f"{where}: the run ended with other bits")
        shutil.rmtree(tried)
    return count


def command(main: Main, file: Path, out: Path, *, workers: int = 1) -> None:
    """`progfed run FILE` in this process, its output in a file next to the run."""
    sys.argv = ["progfed", "run", str(file), "--run", "dense", "--out", str(out.parent), "--workers", str(workers)]
    out.parent.mkdir(exist_ok=True)
    log = os.open(out.with_name("output"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()


def _interrupted(
    run: Callable[[], None], tried: Path, stuck: Path, signals: tuple[int, ...], lines: int
) -> tuple[int, str]:
    """Send the signals to a run that has written so many lines, in the middle of a round; its exit code and output.

    They go to all its processes at once, as from a terminal or a supervisor. Its clients get stuck then. One signal
    waits for them, and they are let go. Two do not, and they never are.
    """
    held = stuck.with_name("held")
    held.unlink(missing_ok=True)
    stuck.write_text(str(lines))

    def leading() -> None:
        os.setsid()  # so that its processes are a group, and this one is not in it
        run()

    process = get_context("fork").Process(target=leading)
    process.start()
    _wait(lambda: held.exists() or not process.is_alive())
    assert process.pid is not None
    output = tried.with_name("output")
    os.killpg(process.pid, signals[0])
    _wait(lambda: b"finishing the round" in output.read_bytes() or not process.is_alive())
    if len(signals) == 1:
        stuck.unlink()
    else:
        os.killpg(process.pid, signals[1])
    process.join(PATIENCE)
    hung = process.exitcode is None
    if hung:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    stuck.unlink(missing_ok=True)
    expect(not _left(process.pid), "a worker process has outlived the run that it belonged to")
    return -1 if hung else int(process.exitcode or 0), output.read_text()


def _left(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _wait(ready: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE
    while not ready() and time.monotonic() < end:
        time.sleep(0.002)
