"""Run directories to report on, made by really training a very small experiment."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from progfed.blocks import Progressive
from progfed.population import from_clients
from progfed.recipe.rate import Constant
from progfed.recipe.recipe import Recipe
from progfed.runs.experiment import Experiment
from progfed.runs.train import run, train
from progfed.schedule import end_to_end, progressive

ROUNDS = 8


def tiny(*, name: str = "tiny", seed: int = 1, grows: bool = True, run: str = "lin") -> Experiment:
    """Four clients with separable points, and a model of two linear blocks that grows once, after one warm-up round."""
    drawn = torch.Generator().manual_seed(5)
    inputs = torch.randn(60, 4, generator=drawn)
    targets = (inputs[:, 0] + 0.5 * inputs[:, 1] > 0).long()
    clients = [(inputs[start : start + 10], targets[start : start + 10]) for start in range(0, 40, 10)]
    model = Progressive(
        blocks=(lambda: nn.Linear(4, 3), lambda: nn.Sequential(nn.ReLU(), nn.Linear(3, 64))),
        heads=(lambda: nn.Linear(3, 2), lambda: nn.Linear(64, 2)),
        example=torch.zeros(1, 4),
        name="two-linear",
    )
    schedule = progressive(ROUNDS, stages=2, warmup=1, overlap=0) if grows else end_to_end(ROUNDS, stages=2)
    return Experiment(
        name=name,
        run=run if grows else f"{run}-end-to-end",
        baseline=f"{run}-end-to-end" if grows else "",
        model=model,
        data=from_clients(clients, (inputs[40:], targets[40:]), classes=2),
        recipe=Recipe(schedule=schedule, cohort=2, rate=Constant(0.3), seed=seed),
    )


def stopped(experiment: Experiment, folder: Path, rounds: int) -> None:
    """Train some rounds and stop, as Ctrl-C does."""
    going = train(experiment, folder, data=folder)
    for _ in range(rounds):
        next(going)
    going.close()  # type: ignore[attr-defined]


def lines(folder: Path) -> list[dict[str, Any]]:
    """The records of a run, read without the library."""
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both runs of the experiment, finished, with two seeds each."""
    root = tmp_path_factory.mktemp("trained")
    for seed in (1, 2):
        for grows in (False, True):
            experiment = tiny(seed=seed, grows=grows)
            run(experiment, root / f"{experiment.run}-seed{seed}")
    return root


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    """A copy of the trained runs that a test may damage."""
    return Path(shutil.copytree(trained, tmp_path / "runs"))


Edit = Callable[[dict[str, Any]], None]


@pytest.fixture
def edited(runs: Path) -> Callable[[str, Edit], None]:
    """Change the `experiment.json` of one of the runs."""

    def change(folder: str, edit: Edit) -> None:
        path = runs / folder / "experiment.json"
        described = json.loads(path.read_text())
        edit(described)
        path.write_text(json.dumps(described))

    return change


def hostile(experiment: Experiment, name: str) -> Experiment:
    """The same experiment under another name."""
    return replace(experiment, name=name, run=name, baseline="")
