"""A validation split: part of the training data as the test set, so that settings are chosen without the real one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from progfed import rng
from progfed.data.datasets import DatasetExamples, joined
from progfed.errors import DataError, UsageError
from progfed.population import Examples, FederatedData, Fetched, Held, Source
from progfed.tensors import leaves, tree_map


def held_out(data: FederatedData, share: float = 0.1, *, clients: bool = False, seed: int = 0) -> FederatedData:
    """The population without `share` of its examples, which become its test set; the test set of `data` is not read.

    Every client gives up its share, drawn by the seed, and keeps one example at least; where a share is no whole
    number, the seed decides which clients give one more. With `clients` whole clients are taken away instead, as
    where a model should serve people it has not seen. Clients are still loaded one at a time, when they are asked for.

    >>> from progfed.population import from_clients
    >>> some = torch.arange(20.0)[:, None], torch.zeros(20)
    >>> split = held_out(from_clients([some, some], test=some))
    >>> split.sizes, split.test_examples().number
    ((18, 18), 4)
    """
    if not 0 < share < 1:
        raise UsageError(f"the share of the training data that is held out is between 0 and 1, not {share}")
    return _without_clients(data, share, seed) if clients else _without_examples(data, share, seed)


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """`held_out` of what a function of the folder of data sets makes: use it as the `data` of an experiment."""

    data: Callable[[Path], FederatedData]
    share: float = 0.1
    clients: bool = False
    seed: int = 0

    def __call__(self, root: Path) -> FederatedData:
        return held_out(self.data(root), self.share, clients=self.clients, seed=self.seed)


def _without_examples(data: FederatedData, share: float, seed: int) -> FederatedData:
    sizes = np.fromiter(data.sizes, np.int64, data.clients)
    # a share of 0.5 examples is 0 or 1, so that small clients give their part as well
    rounding = rng.numpy_generator(seed, "held out", "rounding").random(data.clients)
    held = np.minimum(np.floor(share * sizes + rounding).astype(np.int64), sizes - 1)

    def order(client: int) -> torch.Tensor:
        return torch.randperm(int(sizes[client]), generator=rng.generator(seed, "held out", client))

    def kept(client: int) -> Examples | Source:
        return _part(data.client(client), order(client)[held[client] :].sort().values)

    def given(client: int) -> Examples | Source:
        return _part(data.client(client), order(client)[: held[client]].sort().values)

    givers = [int(client) for client in np.flatnonzero(held > 0)]
    split = _split(data, tuple(map(int, sizes - held)), kept, givers, given)
    return replace(split, **data.of(range(data.clients)))


def _without_clients(data: FederatedData, share: float, seed: int) -> FederatedData:
    number = min(max(1, round(share * data.clients)), data.clients - 1)
    givers = rng.sample(data.clients, max(0, number), seed, "held out", "clients")
    away = set(givers)
    others = [client for client in range(data.clients) if client not in away]
    split = _split(data, tuple(data.sizes[c] for c in others), lambda i: data.client(others[i]), givers, data.client)
    return replace(split, **data.of(others))


def _split(
    data: FederatedData,
    sizes: tuple[int, ...],
    load: Callable[[int], Examples | Source],
    givers: Sequence[int],
    given: Callable[[int], Examples | Source],
) -> FederatedData:
    """A population of these sizes, where everybody can train everything; it is tested on what the givers give."""
    if not givers:
        raise DataError(f"{data.name}: nothing can be held out: every client needs an example to keep, give them more")

    def test() -> Examples | Source:
        found = [_unchecked(given(client)) for client in givers]
        if datasets := [one for one in found if isinstance(one, DatasetExamples)]:
            return joined(datasets)
        pieces = [one if isinstance(one, Examples) else one.take(slice(None)) for one in found]
        return _joined([data.plain(one) if data.plain else one for one in pieces], data.name)

    return replace(data, sizes=sizes, load=load, test=test, name=f"{data.name}, validation", **data.of(()))


def _part(held: Held, index: torch.Tensor) -> Examples | Source:
    """Some examples of a client; those of a dataset are read when they are needed, as all of them would be."""
    source = _unchecked(held)
    return source.part(index.tolist()) if isinstance(source, DatasetExamples) else held.take(index)


def _unchecked(held: Examples | Source) -> Examples | Source:
    return held.source if isinstance(held, Fetched) else held


def _joined(pieces: Sequence[Examples], name: str) -> Examples:
    """All examples as one; clients must have inputs of one shape."""
    columns = zip(*(leaves(piece.inputs) for piece in pieces), strict=True)
    try:
        joined = iter([torch.cat(column) for column in columns])
        targets = torch.cat([piece.targets for piece in pieces])
    except RuntimeError as error:
        raise DataError(f"{name}: held-out examples of different shapes do not make one test set ({error})") from error
    return Examples(tree_map(lambda _: next(joined), pieces[0].inputs), targets)
