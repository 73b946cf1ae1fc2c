"""The experiment: the model, how a machine reads its own examples, and how to train. Change all of it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from progfed import Cosine, Examples, Experiment, Local, Progressive, Quantize, Recipe, progressive
from progfed.data.own import OwnData

CLIENTS = 3
CLASSES = 3


def model() -> Progressive:
    """Two blocks, each with a head to train it with while it is the last one. `progfed.split` cuts a model you have."""
    return Progressive(
        blocks=(
            lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU()),
            lambda: nn.Sequential(nn.Linear(16, 16), nn.ReLU()),
        ),
        heads=(lambda: nn.Linear(16, CLASSES), lambda: nn.Linear(16, CLASSES)),
        example=torch.zeros(1, 8),
        name="two blocks",
    )


def load(folder: Path, client: int) -> Examples:
    """The examples of one client, read on its own machine from the folder in the node's setting `data`.

    Replace this by the reading of your files, such as `torch.load(folder / "examples.pt")`.
    """
    return made_up(60 + 20 * client, seed=client)


def test(folder: Path) -> Examples:
    """The examples on which the server evaluates the model, read from the server's folder of data."""
    return made_up(300, seed=1000)


def made_up(number: int, *, seed: int) -> Examples:
    """Examples around one point per class, to have something to train on."""
    draw = torch.Generator().manual_seed(seed)
    points = torch.eye(CLASSES, 8) * 3
    targets = torch.randint(CLASSES, (number,), generator=draw)
    return Examples(points[targets] + torch.randn(number, 8, generator=draw), targets)


EXPERIMENT = Experiment(
    name="fedapp",
    model=model,
    data=OwnData(clients=CLIENTS, load=load, test=test, classes=CLASSES),
    clients=CLIENTS,
    examples=240,  # of all clients together, about: `progfed plan` counts FLOPs for so many
    # clients that fail: over_selection=1.3 asks reserves, min_updates=2 ends a round with fewer, deadline=60.0 seconds
    recipe=Recipe(
        schedule=progressive(6, stages=2),
        cohort=CLIENTS,
        rate=Cosine(0.1),
        local=Local(epochs=1, batch=16, momentum=0.9),
        up=Quantize(8),
    ),
)
