"""Trackers: their scalars are the records, whenever the log was asked for and however often the run was stopped."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
import wandb
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from typer.testing import CliRunner
from wandb.proto import wandb_internal_pb2
from wandb.sdk.internal.datastore import DataStore

from progfed.cli import app
from progfed.errors import UsageError
from progfed.runs.directory import RunDirectory
from progfed.runs.trackers import FOLDER, scalars, tracked
from progfed.runs.train import train
from tiny import tiny_experiment

# MLflow uses what its database layer will drop one day, and leaves connections to be collected: no business of ours
pytestmark = [
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Scalars = list[tuple[str, int, float]]


def in_tensorboard(run: Path) -> Scalars:
    """Every scalar in the event files, read by TensorBoard itself."""
    found = []
    for path in sorted((run / FOLDER).glob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                number = value.tensor.float_val[0] if value.tensor.float_val else value.simple_value
                found.append((value.tag, event.step, float(number)))
    return found


def in_wandb(run: Path) -> Scalars:
    """Every scalar in the one offline run, read by wandb itself."""
    wandb.teardown()  # ends the process that writes the file
    (path,) = run.glob("wandb/offline-run-*/*.wandb")
    store, found = DataStore(), []
    store.open_for_scan(str(path))
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            found += [(key, items["_step"], float(value)) for key, value in items.items() if key[0] != "_"]
    store.close()
    return found


def in_mlflow(run: Path) -> Scalars:
    """Every scalar of the one run in the store, as MLflow's client reads it."""
    client = MlflowClient(tracking_uri=f"sqlite:///{run / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("tiny")
    (found,) = client.search_runs([experiment.experiment_id])
    histories = [client.get_metric_history(found.info.run_id, name) for name in found.data.metrics]
    return [(one.key, one.step, one.value) for history in histories for one in history]


READERS = {"tensorboard": in_tensorboard, "wandb": in_wandb, "mlflow": in_mlflow}


def logged(run: Path, kind: str) -> Scalars:
    return sorted(READERS[kind](run))


def recorded(run: Path) -> Scalars:
    return [
        (name, number, pytest.approx(value, rel=1e-6))
        for name, number, value in sorted(
            (name, record["round"], value)
            for record in RunDirectory(run).records()
            for name, value in scalars(record).items()
        )
    ]


def trained(run: Path, kind: str, *, rounds: int | None = None, log: bool = True) -> None:
    """Train, or some rounds of it, with the log as one more consumer."""
    going: Any = train(tiny_experiment(), run, data=run, checkpoint_every=3)
    if not log:
        for _ in range(rounds or 0):
            next(going)
        going.close()
        return
    with tracked(run, kind) as write:
        for number, record in enumerate(going, start=1):
            write(record)
            if number == rounds:
                going.close()
                break


@pytest.mark.parametrize("kind", READERS)
def test_the_scalars_are_the_records(tmp_path: Path, kind: str) -> None:
    trained(tmp_path, kind)
    assert logged(tmp_path, kind) == recorded(tmp_path)
    names = {name for name, _, _ in logged(tmp_path, kind)}
    assert names >= {"metric", "loss", "stage", "cost/up_bytes", "cost/flops"}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("log", [True, False])
def test_a_resumed_run_has_every_round_once(tmp_path: Path, kind: str, log: bool) -> None:
    trained(tmp_path, kind, rounds=4, log=log)
    trained(tmp_path, kind)
    assert logged(tmp_path, kind) == recorded(tmp_path)


@pytest.mark.parametrize("kind", READERS)
def test_a_finished_run_can_be_logged_afterwards(tmp_path: Path, kind: str) -> None:
    for _ in train(tiny_experiment(), tmp_path, data=tmp_path):
        pass
    trained(tmp_path, kind)
    assert logged(tmp_path, kind) == recorded(tmp_path)


def test_the_command_writes_it(tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text("from tiny import tiny_experiment\nEXPERIMENT = tiny_experiment()\n")
    out = tmp_path / "out"
    arguments = ["run", str(source), "--log", "tensorboard", "--keep", "4", "--out", str(out), "--workers", "1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    run = next(out.iterdir())
    assert logged(run, "tensorboard") == recorded(run)
    assert (run / "models" / "round-00004.safetensors").exists()


@pytest.mark.parametrize(
    ("kind", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow")]
)
def test_without_the_extra_there_is_one_clear_error_before_training(
    kind: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name == module:
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UsageError, match=rf"pip install 'progfed\[{kind}\]'"), tracked(tmp_path, kind):
        pass
    assert not list(tmp_path.iterdir())
