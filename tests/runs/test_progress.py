"""`progfed.run` from Python: a bar where somebody looks on, all cores, and the same bits."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from progfed import run
from tiny import tiny_experiment

PROGRAM = "import sys, progfed; from tiny import tiny_experiment; progfed.run(tiny_experiment(), sys.argv[1])"


def test_a_bar_is_shown_only_where_somebody_looks_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(tiny_experiment(), tmp_path / "quiet")
    assert capfd.readouterr() == ("", "")
    run(tiny_experiment(), tmp_path / "shown", progress=True)
    told = capfd.readouterr()
    assert "tiny/tiny" in told.err
    assert told.out == ""


def test_in_a_terminal_it_is_shown_unasked(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], stderr=theirs, env=environment, check=True)
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # the other end is closed, and all was read
            break
    os.close(ours)
    assert b"tiny/tiny" in shown
    assert b"11/11" in shown


def test_all_cores_give_the_same_bits_as_one(tmp_path: Path) -> None:
    both = [run(tiny_experiment(), tmp_path / str(workers), workers=workers) for workers in (None, 1)]
    assert both[0]["model_sha256"] == both[1]["model_sha256"]
