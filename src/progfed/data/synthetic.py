"""Synthetic populations in memory: data of any size without a file, for tests, plans and speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import torch
from torch import Tensor

from progfed import rng
from progfed.errors import UsageError
from progfed.population import Examples, FederatedData


@dataclass(frozen=True)
class Sizes(Sequence[int]):
    """The sizes of any number of clients, each drawn from its own key when looked at: a million take no memory."""

    clients: int
    low: int
    high: int
    seed: int = 0

    def __len__(self) -> int:
        return self.clients

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self.clients))]
        place = index + self.clients if index < 0 else index
        if not 0 <= place < self.clients:
            raise IndexError(f"client {index} of {self.clients}")
        if self.low == self.high:
            return self.low
        return self.low + rng.number(self.seed, "synthetic size", place) % (self.high - self.low + 1)


def classification(
    clients: int = 100,
    *,
    shape: Sequence[int] = (1, 28, 28),
    classes: int = 10,
    per_client: int | tuple[int, int] = 20,
    test: int = 200,
    alpha: float | None = None,
    noise: float = 1.0,
    seed: int = 0,
) -> FederatedData:
    """A population that can be learnt: an input is the pattern of its class plus normal noise.

    A client depends only on (seed, client) and is made when it is asked for, so that 1,000,000 clients cost no more
    than those in use.

    Args:
        clients: The number of clients.
        shape: The shape of an input.
        classes: The number of classes.
        per_client: The number of examples of every client, or the smallest and the largest.
        test: The number of test examples.
        alpha: Each client has label shares of its own ~ Dir(alpha); None: all labels are equally likely.
        noise: The deviation of the noise; the patterns have deviation 1.
        seed: What everything is drawn from.

    >>> data = classification(1_000_000, shape=(3,), per_client=5)
    >>> data.clients, data.client(999_999).inputs.shape
    (1000000, torch.Size([5, 3]))
    """
    low, high = (per_client, per_client) if isinstance(per_client, int) else per_client
    if clients < 1 or classes < 1 or not 1 <= low <= high:
        raise UsageError(f"{clients} clients with {low} to {high} examples of {classes} classes cannot be made")
    patterns = torch.randn(classes, *shape, generator=rng.generator(seed, "synthetic patterns"))
    sizes = Sizes(clients, low, high, seed)

    def make(number: int, shares: Tensor | None, generator: torch.Generator) -> Examples:
        if shares is None:
            labels = torch.randint(classes, (number,), generator=generator)
        else:
            labels = torch.multinomial(shares, number, replacement=True, generator=generator)
        values = torch.randn(number, *shape, generator=generator)
        return Examples(values.mul_(noise).add_(patterns[labels]), labels)

    def load(client: int) -> Examples:
        shares = None if alpha is None else _shares(classes, alpha, seed, client)
        return make(sizes[client], shares, rng.generator(seed, "synthetic client", client))

    return FederatedData(
        sizes=sizes,
        load=load,
        test=lambda: make(test, None, rng.generator(seed, "synthetic test")),
        classes=classes,
        name="synthetic",
    )


def segmentation(
    clients: int = 4,
    *,
    modalities: int = 4,
    size: Sequence[int] = (16, 16, 16),
    per_client: int = 2,
    test: int = 2,
    seed: int = 0,
) -> FederatedData:
    """Volumes with nested ellipsoids as overlapping regions `[n, 3, …]`, brighter towards the inside.

    Args:
        clients: The number of clients.
        modalities: The channels of a volume.
        size: The size of a volume, or of an image if it has two numbers.
        per_client: The number of volumes of every client.
        test: The number of test volumes.
        seed: What everything is drawn from.
    """

    def make(number: int, *key: int | str) -> Examples:
        draw = rng.numpy_generator(seed, "synthetic volumes", *key)
        made = [tumour(draw, size, modalities=modalities) for _ in range(number)]
        inputs = np.stack([volume for volume, _ in made])
        regions = np.stack([np.stack([depth > level for level in range(3)]) for _, depth in made])
        return Examples(torch.from_numpy(inputs), torch.from_numpy(regions.astype(np.float32)))

    return FederatedData(
        sizes=Sizes(clients, per_client, per_client),
        load=lambda client: make(per_client, "client", client),
        test=lambda: make(test, "test"),
        name="synthetic-volumes",
    )


def tumour(draw: np.random.Generator, size: Sequence[int], *, modalities: int) -> tuple[np.ndarray, np.ndarray]:
    """One scan `[modalities, …]` and the depth of each voxel: 0 outside the tumour, 1 whole, 2 core, 3 enhancing.

    The head is an ellipsoid that fills most of the volume; outside it every voxel is 0, as after skull-stripping.
    """
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, length) for length in size], indexing="ij"))
    head = (grid**2).sum(0) < 0.9
    axes = (slice(None), *[None] * len(size))
    distance = (((grid - draw.uniform(-0.3, 0.3, len(size))[axes]) / draw.uniform(0.4, 0.6, len(size))[axes]) ** 2).sum(
        0
    )
    depth = sum((head & (distance < reach)).astype(np.int64) for reach in (1.0, 0.5, 0.2))
    gains = draw.uniform(0.5, 1.5, modalities)
    values = np.stack([100 + 40 * gain * depth + draw.normal(0, 10, size) for gain in gains])
    return np.where(head, np.maximum(values, 1.0), 0.0).astype(np.float32), np.asarray(depth)


def _shares(classes: int, alpha: float, seed: int, client: int) -> Tensor:
    """The share of each label on a client."""
    weights = rng.numpy_generator(seed, "synthetic shares", client).standard_gamma(alpha, classes)
    return torch.from_numpy(weights + np.finfo(np.float64).tiny)
