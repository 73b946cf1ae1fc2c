"""A run on disk together with its model and data, which are made again from its experiment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from progfed import experiments
from progfed.blocks import Progressive
from progfed.errors import StorageError, UsageError
from progfed.population import FederatedData
from progfed.recipe.recipe import Loss
from progfed.runs.directory import Record, RunDirectory
from progfed.runs.experiment import Experiment
from progfed.runs.identity import describe
from progfed.runs.snapshots import FINAL, kept


@dataclass(frozen=True)
class Trained:
    """A run's model and data, the seed of its initial weights, its loss, and its models on disk by round and stage."""

    path: Path
    model: Progressive
    data: FederatedData
    seed: int
    loss: Loss
    models: tuple[tuple[int, int, Path], ...]

    @property
    def full(self) -> int:
        """The number of the last stage."""
        return self.model.stages


def open_run(path: Path, *, data: Path, source: str | None = None) -> Trained:
    """The run in a folder, with its model and data made again.

    Args:
        path: The run's folder.
        data: The folder of data.
        source: The name of its experiment, or a Python file, where the run's folder does not tell enough.
    """
    directory = RunDirectory(path)
    described = directory.read("experiment.json")
    if described is None:
        raise StorageError(f"{path} holds no experiment.json: give the folder of a `progfed run`")
    experiment = _same(described, source, path)
    return Trained(
        path=path,
        model=experiment.make_model(),
        data=experiment.make_data(data),
        seed=int(described["recipe"]["seed"]),
        loss=experiment.recipe.local.loss,
        models=_models(directory),
    )


def _same(described: Record, source: str | None, path: Path) -> Experiment:
    """The experiment, of this package or of a file, that has the run's model, data and loss."""
    try:
        name, run = described["name"], described["run"]
        wanted = {key: described[key] for key in ("model", "data")} | {"loss": described["recipe"]["local"]["loss"]}
    except (KeyError, TypeError) as error:
        raise StorageError(f"{path / 'experiment.json'} is damaged ({type(error).__name__}: {error})") from error
    if source is None and name not in experiments.NAMES:
        raise UsageError(f"{path} is a run of {name!r}, which is not one of progfed's: give --experiment FILE.py")
    for experiment in experiments.select(source or name, [run]):
        found = {"model": experiment.model, "data": experiment.data, "loss": experiment.recipe.local.loss}
        other = [key for key, value in found.items() if describe(value) != wanted[key]]
        if other:
            raise UsageError(f"{path} was trained with another {other[0]} than {name}/{run}: give --experiment FILE.py")
    return experiment


def _models(directory: RunDirectory) -> tuple[tuple[int, int, Path], ...]:
    """The round, stage and path of each model on disk that the records know: those kept, and the final one."""
    stages = {record["round"]: record["stage"] for record in directory.records()}
    files = {number: path for number, path in kept(directory.path).items() if number in stages}
    if directory.read("summary.json") is not None:
        files[max(stages)] = directory.path / FINAL
    return tuple((number, stages[number], files[number]) for number in sorted(files))
