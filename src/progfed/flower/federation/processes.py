"""Background processes that a later command finds again, and ends together with all that they started."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from progfed.errors import StorageError
from progfed.files import replace_file

MARK = "PROGFED_MARK"


@dataclass(frozen=True)
class Process:
    """A background process. Its start time tells it from a later process with the same number.

    `mark` is in its environment and in that of all that it started, so that these are found even when they have left
    its session, or when it has ended before them.
    """

    name: str
    pid: int
    started: str
    mark: str
    port: int = 0

    @property
    def running(self) -> bool:
        return bool(self.started) and start_time(self.pid) == self.started


def start(name: str, command: Sequence[str], *, log: Path, environment: Mapping[str, str], cwd: Path) -> Process:
    """Start a background process; its output goes to `log`, and what was there before to `log.old`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    mark = secrets.token_hex(16)
    if log.exists():
        log.replace(log.with_suffix(".log.old"))
    with open(log, "wb") as file:
        started = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**environment, MARK: mark},
            cwd=cwd,
            start_new_session=True,
        )
    started.returncode = 0  # it is left running on purpose, which Popen would otherwise complain about
    return Process(name, started.pid, start_time(started.pid), mark)


def stop(processes: Sequence[Process], *, patience: float = 10.0) -> None:
    """End these processes and all that they started: first by a signal that they can handle, then by force."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in family(processes):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        end = time.monotonic() + patience
        while family(processes) and time.monotonic() < end:
            time.sleep(0.05)
            _reap()


def family(processes: Sequence[Process]) -> list[int]:
    """The numbers of the living processes among these and all that they started."""
    marks = [f"{MARK}={process.mark}".encode() for process in processes if process.mark]
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and start_time(int(entry.name)):
            with suppress(OSError):
                variables = (entry / "environ").read_bytes().split(b"\0")
                found += [int(entry.name)] * any(mark in variables for mark in marks)
    return found


def write(path: Path, processes: Sequence[Process]) -> None:
    """Write processes into a file for a later command."""
    replace_file(path, json.dumps([asdict(process) for process in processes], indent=1).encode())


def read(path: Path) -> list[Process]:
    """The processes in a file; empty where there is no file."""
    if not path.exists():
        return []
    try:
        return [Process(**process) for process in json.loads(path.read_text())]
    except (ValueError, TypeError) as error:
        raise StorageError(f"{path} cannot be read ({error}): end its processes by hand and remove it") from error


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listening(port: int) -> bool:
    """Whether somebody listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def start_time(pid: int) -> str:
    """When a process was started, in ticks since the machine was; empty for one that does not exist or has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _reap() -> None:
    """Collect our children that have ended; otherwise they would seem to be running."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
