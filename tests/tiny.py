"""A tiny model, tiny data and a tiny experiment: everything that can go wrong, in milliseconds."""

from __future__ import annotations

import torch
from torch import nn

from progfed import rng
from progfed.blocks import Progressive
from progfed.population import FederatedData, from_clients
from progfed.recipe.rate import Cosine
from progfed.recipe.recipe import Local, Recipe
from progfed.runs.experiment import Experiment
from progfed.schedule import progressive


def tiny_model() -> Progressive:
    """Three blocks with dropout on 6 inputs and 3 classes: everything that can go wrong, in 100 parameters."""
    return Progressive(
        blocks=(
            lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU()),
            lambda: nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Dropout(0.2)),
            lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh()),
        ),
        heads=(lambda: nn.Linear(5, 3), lambda: nn.Linear(5, 3), lambda: nn.Linear(4, 3)),
        example=torch.zeros(1, 6),
        name="tiny",
    )


def tiny_data(*, clients: int = 6) -> FederatedData:
    """Clients of 5, 6, 7, … examples whose label is a linear function of the input."""
    draw = rng.generator(0, "tiny data")
    planes = torch.randn(6, 3, generator=draw)

    def some(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(number, 6, generator=draw)
        return inputs, (inputs @ planes).argmax(1)

    return from_clients([some(5 + i) for i in range(clients)], test=some(40), classes=3, name="tiny data")


def tiny_recipe(**changes: object) -> Recipe:
    settings: dict[str, object] = {
        "schedule": progressive(9, stages=3, warmup=1),
        "cohort": 3,
        "rate": Cosine(0.2),
        "local": Local(epochs=2, batch=4, momentum=0.9, weight_decay=1e-3),
        "seed": 3,
    }
    return Recipe(**{**settings, **changes})  # type: ignore[arg-type]


def tiny_experiment(**changes: object) -> Experiment:
    settings: dict[str, object] = {
        "name": "tiny",
        "run": "tiny",
        "model": tiny_model,
        "data": tiny_data(),
        "recipe": tiny_recipe(),
    }
    return Experiment(**{**settings, **changes})  # type: ignore[arg-type]
