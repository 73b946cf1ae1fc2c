"""Who holds which example: partitions of a data set over clients.

Each function returns one tensor of positions per client, in increasing order. Every partition is exact (each example
belongs to exactly one client), depends on nothing but its arguments, and leaves no client empty: asking for more
clients than examples is refused, and where the draw itself would leave a client empty (Dirichlet), that client is
given an example of the client that has most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from progfed import rng
from progfed.data.pachinko import pachinko
from progfed.errors import UsageError
from progfed.population import Augment, Examples, FederatedData

Parts = tuple[Tensor, ...]


def iid(number: int, clients: int, *, seed: int = 0) -> Parts:
    """Examples dealt at random; sizes differ by at most one."""
    _check(number, clients)
    order = rng.numpy_generator(seed, "partition", "iid").permutation(number)
    return _parts(np.array_split(order, clients))


def shards(labels: Tensor, clients: int, *, per_client: int = 2, seed: int = 0) -> Parts:
    """Examples sorted by label and cut into equal shards, `per_client` of them dealt to each client (McMahan et al.).

    Shards differ in size by at most one example; a client sees at most about `per_client` labels.
    """
    _check(len(labels), clients * per_client, what=f"{clients} clients x {per_client} shards")
    draw = rng.numpy_generator(seed, "partition", "shards")
    order = draw.permutation(len(labels))
    order = order[np.argsort(labels.numpy()[order], kind="stable")]
    pieces = np.array_split(order, clients * per_client)
    dealt = draw.permutation(clients * per_client).reshape(clients, per_client)
    return _parts([np.concatenate([pieces[shard] for shard in hand]) for hand in dealt])


def dirichlet(labels: Tensor, clients: int, *, alpha: float = 0.5, seed: int = 0) -> Parts:
    """The examples of each label shared out in proportions ~ Dir(alpha): the smaller alpha, the more clients differ."""
    _check(len(labels), clients)
    if not alpha > 0:
        raise UsageError(f"the concentration of a Dirichlet partition must be positive, not {alpha}")
    draw = rng.numpy_generator(seed, "partition", "dirichlet")
    owner = np.empty(len(labels), np.int64)
    for label in np.unique(labels.numpy()):
        members = draw.permutation(np.flatnonzero(labels.numpy() == label))
        share = _proportions(draw, clients, alpha)
        cuts = np.round(np.cumsum(share)[:-1] * len(members)).astype(np.int64)
        for client, piece in enumerate(np.split(members, cuts)):
            owner[piece] = client
    _fill(owner, clients)
    return _by_owner(owner, clients)


def natural(ids: Sequence[str]) -> Parts:
    """One client for each different id, such as a writer's, in the order of the sorted ids."""
    _, owner = np.unique(np.asarray(ids), return_inverse=True)
    return _by_owner(owner, int(owner.max(initial=-1)) + 1)


def split(spec: str, labels: Tensor, clients: int, *, seed: int = 0, groups: Tensor | None = None) -> Parts:
    """The partition that a text names.

    Args:
        spec: `iid`, `shards:2` (shards for each client), `dirichlet:0.5` (alpha), or `pachinko`.
        labels: The label of each example.
        clients: The number of clients.
        seed: What the partition is drawn from.
        groups: The coarse label of each example, which `pachinko` needs.

    Returns:
        The positions of each client's examples.
    """
    name, _, argument = spec.partition(":")
    try:
        value = float(argument) if argument else None
    except ValueError:
        value = float("nan")
    if name == "iid" and value is None:
        return iid(len(labels), clients, seed=seed)
    if name == "shards" and (value is None or (value >= 1 and value == int(value))):
        return shards(labels, clients, per_client=int(value or 2), seed=seed)
    if name == "dirichlet" and (value is None or value > 0):
        return dirichlet(labels, clients, alpha=value or 0.5, seed=seed)
    if name == "pachinko" and value is None and groups is not None:
        _check(len(labels), clients)
        return _by_owner(pachinko(labels.numpy(), groups.numpy(), clients, seed=seed), clients)
    known = "iid, shards:N, dirichlet:ALPHA" + (", pachinko" if groups is not None else "")
    raise UsageError(f"there is no partition {spec!r} for this data set: choose one of {known}")


def federate(
    examples: Examples,
    parts: Parts,
    test: Callable[[], Examples],
    *,
    prepare: Callable[[Examples], Examples] = lambda examples: examples,
    classes: int | None = None,
    augment: Augment | None = None,
    plain: Callable[[Examples], Examples] | None = None,
    name: str = "data",
) -> FederatedData:
    """A population from examples in memory and a partition.

    Args:
        examples: All training examples.
        parts: The positions of each client's examples.
        test: A function that returns the test set.
        prepare: Applied to a client's examples when they are asked for.
        classes: The number of classes; None where targets are not class labels.
        augment: Applied to each training batch.
        name: What errors and records call the data.
    """
    return FederatedData(
        sizes=tuple(len(part) for part in parts),
        load=lambda index: prepare(examples.take(parts[index])),
        test=test,
        classes=classes,
        augment=augment,
        name=name,
        plain=plain,
    )


def _check(number: int, clients: int, *, what: str | None = None) -> None:
    """Refuse fewer than one client, or more clients than there are examples."""
    if clients < 1 or clients > number:
        raise UsageError(
            f"{number} examples cannot be shared among {what or f'{clients} clients'}: each needs one at least"
        )


def _proportions(draw: np.random.Generator, clients: int, alpha: float) -> np.ndarray:
    """Dir(alpha); with an alpha so small that every weight underflows, all goes to one client, as in the limit."""
    weights = draw.standard_gamma(alpha, clients)
    if weights.sum() <= 0:
        weights[draw.integers(clients)] = 1.0
    shares: np.ndarray = weights / weights.sum()
    return shares


def _fill(owner: np.ndarray, clients: int) -> None:
    """Give each empty client the last example of the client that has most (the first such, when several have)."""
    sizes = np.bincount(owner, minlength=clients)
    for empty in np.flatnonzero(sizes == 0):
        richest = int(sizes.argmax())
        owner[np.flatnonzero(owner == richest)[-1]] = empty
        sizes[richest] -= 1
        sizes[empty] = 1


def _by_owner(owner: np.ndarray, clients: int) -> Parts:
    order = np.argsort(owner, kind="stable")
    return _parts(np.split(order, np.cumsum(np.bincount(owner, minlength=clients))[:-1]))


def _parts(pieces: Sequence[np.ndarray]) -> Parts:
    return tuple(torch.from_numpy(np.sort(piece).astype(np.int64)) for piece in pieces)
