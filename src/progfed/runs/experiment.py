"""An experiment as a value, and the run that turns it into records on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from progfed import rng
from progfed.blocks import Progressive
from progfed.errors import DataError, UsageError
from progfed.evaluate import Metric, accuracy
from progfed.population import FederatedData
from progfed.recipe.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A model, data, and a recipe; `run` names the variant, `baseline` the run it is compared with.

    `model` and `data` are values or functions that make them; a function for data is given the folder of data sets.
    A function for a model is called with torch's generator set by the seed of the recipe: the same seed makes the same
    model on every machine, another seed another one. A split model that is given as a value keeps its weights.
    `clients` and `examples` declare the population, so that costs can be planned without the data.
    """

    name: str
    run: str = "run"
    model: Progressive | Callable[[], Progressive]
    data: FederatedData | Callable[[Path], FederatedData]
    recipe: Recipe
    metric: Metric = accuracy
    evaluate_every: int = 1
    baseline: str = ""
    clients: int = 0
    examples: int = 0

    def __post_init__(self) -> None:
        if self.evaluate_every < 1:
            raise UsageError(f"a model is evaluated every 1 or more rounds, not every {self.evaluate_every}")

    def make_model(self) -> Progressive:
        if isinstance(self.model, Progressive):
            return self.model
        with rng.default(self.recipe.seed, "model"):
            made = None if isinstance(self.model, nn.Module) or not callable(self.model) else self.model()
        if not isinstance(made, Progressive):
            kind = type(self.model if made is None else made).__name__
            raise UsageError(f"the model of {self.name} is {kind}, which cannot grow: give progfed.split({kind}, …)")
        return made

    def make_data(self, root: Path) -> FederatedData:
        made = self.data(root) if callable(self.data) else self.data
        if not isinstance(made, FederatedData):
            raise DataError(f"the data of {self.name} are {type(made).__name__}: give progfed.from_clients(…)")
        return made
