"""An experiment as a value, and the run that turns it into records on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from progfed import rng
from progfed.blocks import Progressive
from progfed.errors import DataError, UsageError
from progfed.metrics import Metric, Scores, accuracy, named, told
from progfed.population import FederatedData
from progfed.recipe.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A model, data, and a recipe; `run` names the variant, `baseline` the run it is compared with.

    `model` and `data` are values or functions that make them; a function for data is given the folder of data sets.
    A function for a model is called with torch's generator set by the seed of the recipe: the same seed makes the same
    model on every machine, another seed another one. A split model that is given as a value keeps its weights.
    `metrics` are what the model is judged by on the test set, by name; the first decides which round is the best. A
    single one may be given as `metric`; a bare function gives the score of each example, averaged, in percent.
    With `patience`, training ends once that many rounds of the final model have brought no better one.
    `clients` and `examples` declare the population, so that costs can be planned without the data.
    """

    name: str
    run: str = "run"
    model: Progressive | Callable[[], Progressive]
    data: FederatedData | Callable[[Path], FederatedData]
    recipe: Recipe
    metric: Scores | Metric = accuracy
    evaluate_every: int = 1
    baseline: str = ""
    clients: int = 0
    examples: int = 0
    metrics: Mapping[str, Scores | Metric] = field(default_factory=dict, metadata={"later": True, "before": {}})
    patience: int | None = field(default=None, metadata={"later": True})

    def __post_init__(self) -> None:
        for name in self.metrics:
            if not isinstance(name, str) or not name.isprintable() or not name.strip():
                raise UsageError(f"metrics are given by name, such as {{'rmse': …}}, not by {name!r}")
        if self.metrics:  # told apart from the same metrics in another order by the first
            object.__setattr__(self, "metric", next(iter(self.metrics.values())))
        if self.patience is not None and self.patience < 1:
            raise UsageError(f"patience is a number of rounds, 1 or more, not {self.patience}")
        if self.evaluate_every < 1:
            raise UsageError(f"a model is evaluated every 1 or more rounds, not every {self.evaluate_every}")

    @property
    def judged(self) -> dict[str, Metric]:
        """What the model is judged by, by name; the first decides."""
        return named(self.metrics or self.metric)

    def told(self, record: Mapping[str, Any]) -> str:
        """The metrics of a record or a summary, for people; by name where they were given by name."""
        if record["metric"] is None:
            return ""
        judged = self.judged
        if not self.metrics:
            return told(record["metric"], next(iter(judged.values())).unit)
        return ", ".join(f"{name} {told(value, judged[name].unit)}" for name, value in record["metrics"].items())

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
