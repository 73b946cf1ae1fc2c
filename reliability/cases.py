"""Small experiments that between them use every part of training that a resumed run must get right."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from progfed import rng
from progfed.blocks import Progressive, pooled_head
from progfed.codec import codec
from progfed.errors import StorageError
from progfed.population import FederatedData, from_clients
from progfed.recipe import optimizers
from progfed.recipe.aggregate import Aggregate, Clipped, Mean, Median, Trimmed
from progfed.recipe.ema import Ema
from progfed.recipe.rate import Constant, Cosine
from progfed.recipe.recipe import Local, Recipe
from progfed.runs import checkpoint
from progfed.runs.directory import RunDirectory
from progfed.runs.experiment import Experiment
from progfed.schedule import Schedule, as_published, end_to_end, mixed

CLASSES = 3


@dataclass(frozen=True)
class Case:
    """An experiment, the processes that train it, and how often it is saved."""

    experiment: Experiment
    workers: int = 1
    every: int | None = 1
    label: str = ""


def dense() -> Progressive:
    """Three small blocks on 6 numbers, with dropout."""
    return Progressive(
        blocks=(
            lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU()),
            lambda: nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Dropout(0.2)),
            lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh()),
        ),
        heads=(lambda: nn.Linear(5, CLASSES), lambda: nn.Linear(5, CLASSES), lambda: nn.Linear(4, CLASSES)),
        example=torch.zeros(1, 6),
        name="dense",
    )


def convolutional() -> Progressive:
    """Three small convolutions on images of 6 x 6."""
    widths = (1, 4, 4, 6)
    return Progressive(
        blocks=tuple(partial(_convolution, a, b) for a, b in pairwise(widths)),
        heads=tuple(pooled_head(width, CLASSES) for width in widths[1:]),
        example=torch.zeros(1, 1, 6, 6),
        name="convolutional",
    )


def normed() -> Progressive:
    """Three small blocks with running statistics."""
    return Progressive(
        blocks=tuple(partial(_normalised, a, b) for a, b in ((6, 5), (5, 5), (5, 4))),
        heads=(lambda: nn.Linear(5, CLASSES), lambda: nn.Linear(5, CLASSES), lambda: nn.Linear(4, CLASSES)),
        example=torch.zeros(1, 6),
        name="normed",
    )


def _convolution(inward: int, outward: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inward, outward, 3, padding=1), nn.GroupNorm(2, outward), nn.ReLU())


def _normalised(inward: int, outward: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inward, outward), nn.BatchNorm1d(outward), nn.ReLU())


def population(shape: tuple[int, ...], *, clients: int = 5) -> FederatedData:
    """Clients of 4, 6, 8, … examples whose label is a linear function of the input.

    An even number in batches of 4: running statistics cannot be taken of a batch of one.
    """
    draw = rng.generator(0, "chaos data", *shape)
    planes = torch.randn(36 if len(shape) > 1 else 6, CLASSES, generator=draw)

    def some(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(number, *shape, generator=draw)
        return inputs, (inputs.flatten(1) @ planes).argmax(1)

    return from_clients([some(4 + 2 * i) for i in range(clients)], test=some(20), classes=CLASSES, name="chaos data")


MODELS: dict[str, Callable[[], Progressive]] = {"dense": dense, "convolutional": convolutional, "normed": normed}
for _model in MODELS.values():
    _model.__module__ = "progfed.chaos.cases"  # where they were when the golden run was made: part of its identity
SERVERS: dict[str, Callable[[], optimizers.ServerOptimizer]] = {
    "fedavg": optimizers.fedavg,
    "fedavgm": optimizers.fedavgm,
    "fedadam": optimizers.fedadam,
    "fedyogi": optimizers.fedyogi,
    "fedadagrad": optimizers.fedadagrad,
    "average of fedadam": lambda: Ema(0.8, optimizers.fedadam()),
}
CODECS = ("float", "fp16", "LQ-8", "LQ-2", "TOP-10", "SP-25", "LQ-8+SP-25", "DQ-1.5", "EDEN-1")
AGGREGATES: tuple[Aggregate, ...] = (Mean(), Mean(), Mean(), Median(), Trimmed(0.4), Clipped(0.5))
SCHEDULES: tuple[Schedule, ...] = (
    as_published(5, stages=3, warmup=1),
    as_published(4, stages=3),
    as_published(6, stages=2, warmup=2),
    mixed(4, stages=3),
    end_to_end(4, stages=3),
)


def case(number: int, *, seed: int = 0) -> Case:
    """The `number`-th case of a seed: model, codecs, optimizer, schedule and the rest drawn independently."""
    draw = rng.numpy_generator(seed, "case", number)

    def pick(options: Any) -> Any:
        return options[int(draw.integers(len(options)))]

    model = pick(list(MODELS))
    names = ("float", "float") if model == "normed" else (pick(CODECS), pick(CODECS))
    optimizer, schedule = pick(list(SERVERS)), pick(SCHEDULES)
    feedback, delta = (bool(draw.integers(2)) and model != "normed" for _ in range(2))
    recipe = Recipe(
        schedule=schedule,
        cohort=int(pick((3, 4, 5))),
        rate=pick((Constant(0.1), Cosine(0.2))),
        local=Local(
            epochs=1, batch=4, momentum=0.9 * int(draw.integers(2)), prox=0.1 * int(draw.integers(2)), clip=None
        ),
        server=SERVERS[optimizer](),
        weighting=pick(("examples", "uniform")),
        up=codec(names[0]),
        down=codec(names[1]),
        feedback=feedback,
        delta=delta,
        seed=number,
        aggregate=pick(AGGREGATES),
        over_selection=pick((1.0, 1.3)),
    )
    workers, every = pick((1, 1, 1, 2)), pick((1, 2, 3, None))
    label = f"case {number} of seed {seed}: {model}, {optimizer}, up {names[0]}, down {names[1]}, {workers} workers"
    return Case(_experiment(model, recipe), workers, every, label)


def plain(**changes: Any) -> Case:
    """The case that most trials use: growth with warm-up, FedAdam, everything else by default."""
    settings: dict[str, Any] = {
        "schedule": SCHEDULES[0],
        "cohort": 3,
        "rate": Cosine(0.2),
        "local": Local(batch=4, momentum=0.9, clip=None),
        "server": optimizers.fedadam(),
        "seed": 1,
    }
    return Case(_experiment("dense", Recipe(**{**settings, **changes})), label="the plain case")


def _experiment(model: str, recipe: Recipe) -> Experiment:
    shape = (1, 6, 6) if model == "convolutional" else (6,)
    return Experiment(name="chaos", run=model, model=MODELS[model], data=population(shape), recipe=recipe)


def outcome(folder: Path) -> str:
    """The SHA-256 of all that a finished run leaves, but for what the clock said: weights, records and counters."""
    directory = RunDirectory(folder)
    summary = directory.read("summary.json")
    found = checkpoint.load(directory.checkpoints)
    if summary is None or found is None:
        raise StorageError(f"{folder} holds no finished run")
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes())
    for name in sorted(found.tensors):
        digest.update(checkpoint.to_bytes(found.tensors[name]))
    for value in (*directory.records(), summary, found.state):
        digest.update(json.dumps(_timeless(value), sort_keys=True).encode())
    return digest.hexdigest()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if key != "seconds"}
    return value
