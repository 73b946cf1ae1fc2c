"""The variants that are compared, each in its own process and, for peers, in its own virtual environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import machine

HERE = Path(__file__).parent
VENVS = HERE / ".venvs"
ERRORS = HERE / "out" / "errors.log"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}


@dataclass(frozen=True)
class Variant:
    """A script, and what must be installed for it (nothing: it runs where the benchmark runs)."""

    name: str
    script: str
    needs: tuple[str, ...] = ()

    def python(self) -> str:
        """The interpreter, in an environment that is made where it is not there yet."""
        if not self.needs:
            return sys.executable
        folder = VENVS / self.name
        python, done = folder / "bin" / "python", folder / ".installed"
        if not done.exists() or done.read_text() != " ".join(self.needs):
            venv.create(folder, with_pip=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", *self.needs], check=True)
            done.write_text(" ".join(self.needs))
        return str(python)


TORCH = "torch==2.13.0"
VARIANTS = {
    "progfed": Variant("progfed", "ours.py"),
    "plain": Variant("plain", "peer_plain.py"),
    "flower": Variant("flower", "peer_flower.py", (TORCH, "flwr[simulation]==1.41.0")),
    "pfl": Variant("pfl", "peer_pfl.py", (TORCH, "pfl[pytorch]==0.6.0")),
    "floor": Variant("floor", "floor.py"),
}


class Running:
    """A variant that is up and waits to be asked for rounds."""

    def __init__(self, variant: Variant, *arguments: str) -> None:
        self.name = variant.name
        self._mark = f"{variant.name}-{os.getpid()}-{time.monotonic_ns()}"
        environment = {**os.environ, **QUIET, "PYTHONPATH": str(HERE), machine.MARK: self._mark}
        python = variant.python()
        ERRORS.parent.mkdir(exist_ok=True)
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [python, str(HERE / variant.script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=ERRORS.open("a"),
            text=True,
            env=environment,
        )
        self.title = self._answer()["ready"]
        self.start = time.perf_counter() - began

    def round(self) -> dict[str, Any]:
        """One round, with the share of the machine that others took meanwhile."""
        assert self._process.stdin is not None
        busy, own, began = machine.busy(), machine.spent(self._mark), time.perf_counter()
        self._process.stdin.write("round\n")
        self._process.stdin.flush()
        told = self._answer()
        elapsed = time.perf_counter() - began
        others = machine.busy() - busy - (machine.spent(self._mark) - own)
        return {**told, "others": max(0.0, others) / (elapsed * (os.cpu_count() or 1))}

    def memory(self) -> tuple[float, int]:
        """Megabytes and processes, now."""
        return machine.memory(self._mark)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@"):
                told: dict[str, Any] = json.loads(line[1:])
                return told
        raise RuntimeError(f"{self.name} has ended: see {ERRORS}")

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
