"""Evaluating where the data are: each client judges the model that it has after training, on its own test examples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from progfed.codec import Schema
from progfed.errors import DataError, UsageError
from progfed.evaluate import batch_size, scores, values
from progfed.metrics import Metric, accuracy, named
from progfed.recipe.method import Around, Visit, slot
from progfed.recipe.optimizers import State
from progfed.tensors import Tensors

_SLOT = "scores"


@dataclass(frozen=True)
class OnClients(Around):
    """Clients measure the model themselves, and send the scores beside their updates.

    Each client of the cohort evaluates what it has after its local training, its personal parts included, on
    `FederatedData(own_tests=…)`. The score of a round is the mean over the clients that took part, weighted as their
    updates are, and `… deviation` says how far clients are apart. The server's test set is not used.

    Args:
        of: How clients train: another method, such as `Personal()`.
        metrics: What the model is judged by, as for `Experiment(metrics=…)`, which is given the same names.
    """

    metrics: Any = accuracy

    def __post_init__(self) -> None:
        if not self._metrics:
            raise UsageError("OnClients needs a metric that clients measure")

    @property
    def _metrics(self) -> dict[str, Metric]:
        return named(self.metrics)

    def train(self, visit: Visit) -> None:
        self.of.train(visit)
        if visit.rehearsal:  # evaluating takes less than training
            return
        test = visit.test
        if test is None:
            raise DataError(
                f"client {visit.client} has no test examples of its own to evaluate on: give the population "
                "own_tests, or leave out OnClients"
            )
        starts = range(0, test.number, batch_size(visit.module, test))
        try:
            found = values(self._metrics, [scores(visit.module, test, self._metrics, starts)])
        finally:
            visit.module.train()
        visit.send(_SLOT, {name: torch.tensor(value) for name, value in found.items()})
        visit.send(_SLOT, {f"{name} squared": torch.tensor(value**2) for name, value in found.items()})

    def up(self, trained: Schema) -> Schema:
        both = [told for name in self._metrics for told in (name, f"{name} squared")]
        return self.of.up(trained) | slot(_SLOT, dict.fromkeys(both, ()))

    def init(self, params: Tensors) -> State:
        return {_SLOT: {}, **self.of.init(params)}

    def update(self, mean: Tensors, state: State, shares: Mapping[str, float]) -> tuple[Tensors, State]:
        measured = {name.partition("/")[2]: value for name, value in mean.items() if name.startswith(f"{_SLOT}/")}
        others = {name: value for name, value in mean.items() if not name.startswith(f"{_SLOT}/")}
        inner = {name: tensors for name, tensors in state.items() if name != _SLOT}
        changed, after = self.of.update(others, inner, shares)
        return changed, {_SLOT: measured, **after}

    def scores(self, state: State) -> dict[str, float] | None:
        found = {name: float(value) for name, value in state[_SLOT].items()}
        return {
            told: value
            for name in self._metrics
            if name in found
            for told, value in (
                (name, found[name]),
                (f"{name} deviation", math.sqrt(max(0.0, found[f"{name} squared"] - found[name] ** 2))),
            )
        }
