"""How the updates of a round become one: the weighted mean, or a rule that a minority of bad clients cannot steer.

An aggregate is a value in a recipe. The mean is computed as updates arrive and keeps only their sum; the robust rules
have to see all of them, so their memory grows with the cohort. They take every client for one vote: examples that a
client merely claims must not buy it weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from progfed.errors import UsageError
from progfed.tensors import Tensors, mean

Weighted = Iterable[tuple[float, Tensors]]


class Aggregate(Protocol):
    """How updates become one: takes pairs of a weight and an update, and returns one update.

    Every name is aggregated over the updates that contain it, since clients may train different parts.
    """

    def __call__(self, updates: Weighted) -> Tensors: ...


@dataclass(frozen=True)
class Mean:
    """The weighted mean (FedAvg). One client can move it anywhere."""

    def __call__(self, updates: Weighted) -> Tensors:
        return mean(updates)


@dataclass(frozen=True)
class Median:
    """The middle value of every coordinate (Yin et al., 2018): unmoved by fewer than half of the clients.

    >>> Median()([(1, {"w": torch.tensor([1.0])}), (1, {"w": torch.tensor([2.0])}), (1, {"w": torch.tensor([99.0])})])
    {'w': tensor([2.])}
    """

    robust: ClassVar[bool] = True

    def __call__(self, updates: Weighted) -> Tensors:
        return by_name(updates, self._middle)

    def _middle(self, stacked: Tensor) -> Tensor:
        ordered, number = stacked.sort(dim=0).values, len(stacked)
        return ordered[(number - 1) // 2 : number // 2 + 1].mean(dim=0)


@dataclass(frozen=True)
class Trimmed:
    """The mean of every coordinate without its `share` largest and `share` smallest values (Yin et al., 2018).

    The share is rounded down to a number of updates, so with few updates nothing is dropped and the result is the plain
    mean: a share of 0.2 needs 5 updates.

    >>> Trimmed(0.2).least, Trimmed(0.4).least
    (5, 3)
    """

    robust: ClassVar[bool] = True

    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise UsageError(f"a trimmed mean drops a share of 0 to below 0.5 on each side, not {self.share}")

    @property
    def least(self) -> int:
        """The fewest updates of which at least one is dropped on each side."""
        return math.ceil(1 / self.share - 1e-9) if self.share else 1

    def __call__(self, updates: Weighted) -> Tensors:
        return by_name(updates, self._inner)

    def _inner(self, stacked: Tensor) -> Tensor:
        drop = int(self.share * len(stacked) + 1e-9)  # 0.2 of 10 is 2, whatever the float product says
        return stacked.sort(dim=0).values[drop : len(stacked) - drop].mean(dim=0)


@dataclass(frozen=True)
class Clipped:
    """Scales every update down to an L2 norm of at most `norm`, then aggregates: bounds what one client can do."""

    robust: ClassVar[bool] = True

    norm: float
    then: Aggregate = field(default_factory=Mean)

    def __post_init__(self) -> None:
        if not self.norm > 0:
            raise UsageError(f"a clipping norm must be positive, not {self.norm}")

    @property
    def least(self) -> int:
        """The fewest updates that the aggregate after it needs."""
        return least(self.then)

    def __call__(self, updates: Weighted) -> Tensors:
        return self.then((weight, clip(update, self.norm)) for weight, update in updates)


def least(aggregate: Aggregate) -> int:
    """The fewest updates that a round needs for this aggregate: its `least` if it has one, as trimmed means have."""
    number: int = getattr(aggregate, "least", 1)
    return number


def robust(aggregate: Aggregate) -> bool:
    """Whether an aggregate is to keep a minority of clients from deciding: it says so by `robust`, a mean does not."""
    said: bool = getattr(aggregate, "robust", False)
    return said


NAMED: dict[str, Aggregate] = {"mean": Mean(), "median": Median(), "trimmed": Trimmed()}
"""Aggregates that a command line can ask for by name."""


def clip(update: Mapping[str, Tensor], norm: float) -> Tensors:
    """The update, scaled down where its L2 norm over all names exceeds `norm`.

    >>> clip({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}, 1.0)
    {'a': tensor([0.6000]), 'b': tensor([0.8000])}
    """
    found = l2(update)
    return dict(update) if found <= norm else {name: value * (norm / found) for name, value in update.items()}


def l2(update: Mapping[str, Tensor]) -> float:
    """The L2 norm over all names, in double precision and in the order of the names."""
    squares = [update[name].double().square().sum() for name in sorted(update)]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


def by_name(updates: Weighted, rule: Callable[[Tensor], Tensor]) -> Tensors:
    """Apply `rule` to the stacked values of every name, over the updates that contain it."""
    listed = [update for _, update in updates]
    return {name: rule(torch.stack([update[name] for update in listed if name in update])) for name in names(listed)}


def names(updates: Iterable[Mapping[str, Tensor]]) -> Iterator[str]:
    """The names of all updates, each once, in the order in which they appear."""
    return iter(dict.fromkeys(name for update in updates for name in update))
