"""A run's records in TensorBoard, Weights & Biases or MLflow: one more consumer of the records. Each is an extra."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from progfed.errors import UsageError
from progfed.runs.directory import Record, RunDirectory

FOLDER = "tensorboard"


class Tracker(Protocol):
    """A place for scalars by name and round."""

    def add(self, values: dict[str, float], number: int) -> None:
        """Write the values, by name, of round `number`."""

    def close(self) -> None:
        """Write what is still held back."""


@contextmanager
def tracked(run: Path, kind: str = "tensorboard") -> Iterator[Callable[[Record], None]]:
    """While the block runs, what it is given writes the scalars of a record to a tracker, under the record's round.

    The rounds that were recorded before are written first, into a log that replaces those of earlier sessions: no
    round is missing and none is there twice, whenever the run was interrupted or the log asked for.

    Args:
        run: The folder of the run.
        kind: `tensorboard`, `wandb` or `mlflow`.
    """
    make = _KINDS[kind]()
    open_: list[Tracker] = []

    def add(record: Record) -> None:
        if not open_:
            open_.append(_started(make, run, before=record["round"]))
        open_[0].add(scalars(record), record["round"])

    try:
        yield add
        if not open_:  # nothing was left to train: the records alone tell it all
            open_.append(_started(make, run, before=None))
    finally:
        for tracker in open_:
            tracker.close()


def scalars(record: Record) -> dict[str, float]:
    """What trackers draw of a round, by name: metrics where it was evaluated, loss, rate, stage, all costs so far."""
    total = record["total"]
    found = {"metric": record["metric"], "loss": record["loss"], "stage": record["stage"], "lr": record["lr"]}
    found |= {f"metric/{name}": value for name, value in record.get("metrics", {}).items()}
    costs = {f"cost/{name}": total[name] for name in ("down_bytes", "up_bytes", "paper_bytes", "flops", "seconds")}
    return {name: float(value) for name, value in (found | costs).items() if value is not None}


def _started(make: Callable[[Path], Tracker], run: Path, *, before: int | None) -> Tracker:
    tracker = make(run)
    for record in RunDirectory(run).records():
        if before is None or record["round"] < before:
            tracker.add(scalars(record), record["round"])
    return tracker


def _names(run: Path) -> tuple[str, str]:
    """The experiment, and the run with its seed, as a tracker lists them."""
    asked = RunDirectory(run).read("experiment.json") or {}
    return str(asked.get("name", "progfed")), f"{asked.get('run', 'run')}-seed{asked.get('recipe', {}).get('seed', 0)}"


def _tensorboard() -> Callable[[Path], Tracker]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise _missing("tensorboard", "TensorBoard") from error

    class Events:
        def __init__(self, run: Path) -> None:
            for old in (run / FOLDER).glob("events.out.tfevents.*"):
                old.unlink()
            self._writer: Any = SummaryWriter(str(run / FOLDER))

        def add(self, values: dict[str, float], number: int) -> None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, number)

        def close(self) -> None:
            self._writer.close()

    return Events


def _wandb() -> Callable[[Path], Tracker]:
    try:
        import wandb
    except ImportError as error:
        raise _missing("wandb", "Weights & Biases") from error

    class Synced:
        """Offline unless WANDB_MODE says otherwise; `wandb sync` sends it later."""

        def __init__(self, run: Path) -> None:
            for old in (run / "wandb").glob("offline-run-*"):
                shutil.rmtree(old)
            project, name = _names(run)
            mode: Any = os.environ.get("WANDB_MODE", "offline")
            # the machine and the code are nobody's business unless its owner says so
            quiet = wandb.Settings(silent=True, disable_git=True, disable_code=True, x_disable_stats=True)
            self._run = wandb.init(
                project=project, name=name, dir=str(run), mode=mode, settings=quiet, reinit="create_new"
            )

        def add(self, values: dict[str, float], number: int) -> None:
            self._run.log(values, step=number)

        def close(self) -> None:
            self._run.finish()

    return Synced


def _mlflow() -> Callable[[Path], Tracker]:
    try:
        from mlflow import MlflowClient
        from mlflow.entities import Metric
    except ImportError as error:
        raise _missing("mlflow", "MLflow") from error

    class Logged:
        """In `mlflow.db` in the run's folder, unless MLFLOW_TRACKING_URI names another place."""

        def __init__(self, run: Path) -> None:
            place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(run / 'mlflow.db').absolute()}"
            project, name = _names(run)
            self._client = MlflowClient(tracking_uri=place)
            found = self._client.get_experiment_by_name(project)
            # without a place of its own for files, which are not logged, MLflow would make a folder where it is called
            files = (run / "mlflow").absolute().as_uri()
            place = found.experiment_id if found else self._client.create_experiment(project, artifact_location=files)
            tags = {"progfed.run": str(run.absolute())}
            for old in self._client.search_runs([place]):
                if old.data.tags.get("progfed.run") == tags["progfed.run"]:
                    self._client.delete_run(old.info.run_id)
            self._id = self._client.create_run(place, run_name=name, tags=tags).info.run_id

        def add(self, values: dict[str, float], number: int) -> None:
            now = int(time.time() * 1000)
            self._client.log_batch(self._id, metrics=[Metric(name, x, now, number) for name, x in values.items()])

        def close(self) -> None:
            self._client.set_terminated(self._id)

    return Logged


_KINDS: dict[str, Callable[[], Callable[[Path], Tracker]]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}


def _missing(extra: str, name: str) -> UsageError:
    return UsageError(f"--log {extra} needs {name}: pip install 'progfed[{extra}]'")
