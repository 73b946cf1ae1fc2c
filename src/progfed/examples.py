"""What clients hold: the examples of one client, and the population of all clients, made only when asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from progfed.errors import DataError
from progfed.tensors import tree_len, tree_map


@dataclass(frozen=True)
class Examples:
    """Inputs (any tree of tensors) and targets; the first dimension of every tensor is the example."""

    inputs: Any
    targets: Tensor

    @property
    def number(self) -> int:
        return tree_len(self.inputs)

    def take(self, index: Tensor | slice) -> Examples:
        """The examples at these positions, in this order."""
        return Examples(tree_map(lambda leaf: leaf[index], self.inputs), self.targets[index])


Augment = Callable[[Examples, torch.Generator], Examples]


@dataclass(frozen=True)
class FederatedData:
    """A population of clients and a test set.

    `sizes[i]` is the number of examples of client i and `load(i)` makes them: nothing else of a client is kept,
    so a million clients cost memory only for those in use. `augment` is applied to each training batch with a
    generator keyed by (seed, round, client). `classes` is None where targets are not class labels.

    `deepest[i]` is the deepest stage that client i can train; in rounds of deeper stages it trains M^deepest (empty:
    everybody can train everything).
    """

    sizes: Sequence[int]
    load: Callable[[int], Examples]
    test: Callable[[], Examples]
    classes: int | None = None
    augment: Augment | None = None
    name: str = "data"
    deepest: Sequence[int] = ()

    def __post_init__(self) -> None:
        check_deepest(self.deepest, len(self.sizes), self.name)

    @property
    def clients(self) -> int:
        return len(self.sizes)

    def client(self, index: int) -> Examples:
        """The examples of one client, checked: as many as declared, and labels inside the classes."""
        examples = self.load(index)
        number = examples.number
        if number == 0:
            raise DataError(f"{self.name}: client {index} has no examples: leave it out of the population")
        if number != self.sizes[index] or len(examples.targets) != number:
            raise DataError(
                f"{self.name}: client {index} was declared with {self.sizes[index]} examples, "
                f"but has {number} inputs and {len(examples.targets)} targets"
            )
        self._check_labels(examples.targets, f"client {index}")
        return examples

    def test_examples(self) -> Examples:
        """The test set, checked like a client's examples."""
        examples = self.test()
        self._check_labels(examples.targets, "the test set")
        return examples

    def _check_labels(self, targets: Tensor, where: str) -> None:
        if self.classes is None or targets.is_floating_point() or targets.numel() == 0:
            return
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or high >= self.classes:
            bad = low if low < 0 else high
            raise DataError(
                f"{self.name}: {where} has label {bad}, outside the {self.classes} classes 0 to {self.classes - 1}"
            )


def check_deepest(deepest: Sequence[int], clients: int, name: str = "data") -> None:
    """Refuse depths that do not fit the population: one for every client, none below 1."""
    if not deepest:
        return
    if len(deepest) != clients:
        raise DataError(f"{name}: {len(deepest)} depths for {clients} clients: declare the deepest stage of each")
    if min(deepest) < 1:
        client = next(client for client, stage in enumerate(deepest) if stage < 1)
        raise DataError(
            f"{name}: client {client} declares stage {deepest[client]} as its deepest: "
            "who cannot train stage 1 must be left out of the population"
        )


def from_clients(
    clients: Sequence[tuple[Any, Tensor]],
    test: tuple[Any, Tensor],
    *,
    classes: int | None = None,
    augment: Augment | None = None,
    name: str = "your data",
    deepest: Sequence[int] = (),
) -> FederatedData:
    """A population from one (inputs, targets) pair per client, held in memory.

    >>> data = from_clients([(torch.zeros(3, 2), torch.tensor([0, 1, 1]))], test=(torch.zeros(1, 2), torch.tensor([0])))
    >>> data.clients, data.client(0).number
    (1, 3)
    """
    held = [Examples(inputs, targets) for inputs, targets in clients]
    return FederatedData(
        sizes=tuple(examples.number for examples in held),
        load=lambda index: held[index],
        test=lambda: Examples(*test),
        classes=classes,
        augment=augment,
        name=name,
        deepest=deepest,
    )
