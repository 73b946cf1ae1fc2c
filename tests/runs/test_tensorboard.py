"""TensorBoard: its scalars are the records, whenever the log was asked for and however often the run was stopped."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from typer.testing import CliRunner

from progfed.cli import app
from progfed.errors import UsageError
from progfed.runs.directory import RunDirectory
from progfed.runs.tensorboard import FOLDER, board, scalars
from progfed.runs.train import train
from tiny import tiny_experiment


def logged(run: Path) -> list[tuple[str, int, float]]:
    """Every scalar in the event files, read by TensorBoard itself."""
    found = []
    for path in sorted((run / FOLDER).glob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                number = value.tensor.float_val[0] if value.tensor.float_val else value.simple_value
                found.append((value.tag, event.step, float(number)))
    return found


def recorded(run: Path) -> list[tuple[str, int, float]]:
    return [
        (name, record["round"], pytest.approx(value, rel=1e-6))
        for record in RunDirectory(run).records()
        for name, value in scalars(record).items()
    ]


def trained(run: Path, *, rounds: int | None = None, log: bool = True) -> None:
    """Train, or some rounds of it, with the log as one more consumer."""
    going: Any = train(tiny_experiment(), run, data=run, checkpoint_every=3)
    if not log:
        for _ in range(rounds or 0):
            next(going)
        going.close()
        return
    with board(run) as write:
        for number, record in enumerate(going, start=1):
            write(record)
            if number == rounds:
                going.close()
                break


def test_the_scalars_are_the_records(tmp_path: Path) -> None:
    trained(tmp_path)
    assert logged(tmp_path) == recorded(tmp_path)
    assert {tag for tag, _, _ in logged(tmp_path)} >= {"metric", "loss", "stage", "cost/up_bytes", "cost/flops"}


@pytest.mark.parametrize("log", [True, False])
def test_a_resumed_run_has_every_round_once(tmp_path: Path, log: bool) -> None:
    trained(tmp_path, rounds=4, log=log)
    trained(tmp_path)
    assert logged(tmp_path) == recorded(tmp_path)


def test_a_finished_run_can_be_logged_afterwards(tmp_path: Path) -> None:
    for _ in train(tiny_experiment(), tmp_path, data=tmp_path):
        pass
    trained(tmp_path)
    assert logged(tmp_path) == recorded(tmp_path)


def test_the_command_writes_it(tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text("from tiny import tiny_experiment\nEXPERIMENT = tiny_experiment()\n")
    out = tmp_path / "out"
    arguments = ["run", str(source), "--log", "tensorboard", "--keep", "4", "--out", str(out), "--workers", "1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    run = next(out.iterdir())
    assert logged(run) == recorded(run)
    assert (run / "models" / "round-00004.safetensors").exists()


def test_without_the_extra_there_is_one_clear_error_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name == "torch.utils.tensorboard":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UsageError, match=r"pip install 'progfed\[tensorboard\]'"), board(tmp_path):
        pass
    assert not (tmp_path / FOLDER).exists()
