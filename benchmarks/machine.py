"""What the machine can do and what it is doing: its GEMM rate, and the processor time that others take meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import platform
import time
from pathlib import Path
from typing import Any

import torch

MARK = "PROGFED_BENCH"
"""An environment variable that every process of a variant inherits: how they are found again."""


def gemm(cores: int) -> float:
    """GFLOP/s of float32 matrix products on this many cores, one process each: the physical limit."""
    with multiprocessing.get_context("fork").Pool(cores) as pool:
        return sum(pool.map(_gemm, [1.0] * cores, chunksize=1))


def _gemm(seconds: float) -> float:
    torch.set_num_threads(1)
    left, size = torch.randn(1024, 1024), 1024
    left @ left
    began, number = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        left @ left
        number += 1
    return number * 2 * size**3 / (time.perf_counter() - began) / 1e9


def describe() -> dict[str, Any]:
    """The machine and the versions, for the record."""
    model = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {
        "processor": model[0] if model else platform.processor(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def busy() -> float:
    """Seconds of processor time that the whole machine has spent, time stolen by its host included."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def processes(mark: str) -> list[int]:
    """The processes of a variant, wherever they were reparented to."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


def spent(mark: str) -> float:
    """Seconds of processor time of a variant's processes, children that have ended included."""
    total = 0
    for process in processes(mark):
        try:
            after_name = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += sum(int(field) for field in after_name[11:15])
    return total / os.sysconf("SC_CLK_TCK")


def memory(mark: str) -> tuple[float, int]:
    """Megabytes of a variant's processes, shared pages counted once, and how many processes there are."""
    total, found = 0, processes(mark)
    for process in found:
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:
            continue
        total += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total / 1024, len(found)
