"""Ctrl-C once, twice, and SIGTERM: the documented exit code, and a run that continues as if nothing had been."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

from progfed import rng
from progfed.chaos import expect
from progfed.chaos.cases import outcome
from progfed.chaos.kills import forked, prepare

INTERRUPTED = 130
PATIENCE = 60.0
"""Seconds after which a process that does not end has hung."""

EXPERIMENT = """
import time
from dataclasses import replace
from pathlib import Path
from progfed.chaos.cases import plain
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
    whole, tried = folder / "whole", folder / "tried"
    file.write_text(EXPERIMENT.format(stuck=str(stuck), lines=str(tried / "rounds.jsonl")))
    expect(forked(lambda: command(main, file, whole), notes=folder / "notes") == 0, "a run failed")
    for number in range(count):
        name = list(WAYS)[number % len(WAYS)]
        code, text = _interrupted(lambda: command(main, file, tried), tried, stuck, WAYS[name], draw.randrange(1, 30))
        where = f"{name} (number {number}, seed {seed})"
        expect(code == INTERRUPTED, f"{where}: exit code {code}: {text}")
        expect("Traceback" not in text, f"{where}: {text}")
        expect(forked(lambda: command(main, file, tried), notes=folder / "notes") == 0, f"{where}: cannot be continued")
        expect(outcome(tried) == outcome(whole), f"{where}: the run ended with other bits")
        shutil.rmtree(tried)
    return count


def command(main: Main, file: Path, out: Path) -> None:
    """`progfed run FILE` in this process, its output in a file next to the run."""
    sys.argv = ["progfed", "run", str(file), "--run", "dense", "--out", str(out), "--workers", "1"]
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

    Its clients get stuck then. One signal waits for them, and they are let go. Two do not, and they never are.
    """
    held = stuck.with_name("held")
    held.unlink(missing_ok=True)
    stuck.write_text(str(lines))
    process = get_context("fork").Process(target=run)
    process.start()
    _wait(lambda: held.exists() or not process.is_alive())
    assert process.pid is not None
    output = tried.with_name("output")
    os.kill(process.pid, signals[0])
    _wait(lambda: b"finishing the round" in output.read_bytes() or not process.is_alive())
    if len(signals) == 1:
        stuck.unlink()
    else:
        os.kill(process.pid, signals[1])
    process.join(PATIENCE)
    hung = process.exitcode is None
    if hung:
        process.kill()
        process.join()
    stuck.unlink(missing_ok=True)
    return -1 if hung else int(process.exitcode or 0), output.read_text()


def _wait(ready: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE
    while not ready() and time.monotonic() < end:
        time.sleep(0.002)
