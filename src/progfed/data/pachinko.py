"""Pachinko allocation, which made the federated CIFAR-100 (Reddi et al.), for any data with coarse and fine labels."""

from __future__ import annotations

import numpy as np

from progfed import rng
from progfed.errors import DataError


def pachinko(
    fine: np.ndarray, coarse: np.ndarray, clients: int, *, alpha: float = 0.1, beta: float = 10.0, seed: int = 0
) -> np.ndarray:
    """The client of each example.

    Each client has a multinomial over the coarse classes ~ Dir(alpha) and, inside each, one over its fine classes
    ~ Dir(beta). An example is drawn by coarse class, then fine class, then at random among those nobody has yet; a fine
    class that is used up leaves its multinomial, and a coarse class likewise (the rest is renormalised). Clients are
    filled one after another, and their sizes differ by at most one.

    Args:
        fine: The fine label of each example.
        coarse: The coarse label of each example.
        clients: The number of clients.
        alpha: How even the coarse classes of a client are.
        beta: How even the fine classes inside a coarse class are.
        seed: What everything is drawn from.
    """
    tree = _tree(fine, coarse)
    draw = rng.numpy_generator(seed, "partition", "pachinko")
    unused = [[list(draw.permutation(np.flatnonzero(fine == leaf))) for leaf in leaves] for leaves in tree]
    owner = np.empty(len(fine), np.int64)
    for client, size in enumerate(_sizes(len(fine), clients)):
        roots = draw.dirichlet(np.full(len(tree), alpha))
        branches = [draw.dirichlet(np.full(len(leaves), beta)) for leaves in tree]
        for high, low in draw.random((size, 2)):
            root = _pick(roots, [any(leaves) for leaves in unused], high)
            leaf = _pick(branches[root], [bool(examples) for examples in unused[root]], low)
            owner[unused[root][leaf].pop()] = client
    return owner


def _tree(fine: np.ndarray, coarse: np.ndarray) -> list[list[int]]:
    """The fine classes of each coarse class; each fine class belongs to one coarse class."""
    pairs = sorted({(int(c), int(f)) for c, f in zip(coarse, fine, strict=True)})
    if len({leaf for _, leaf in pairs}) != len(pairs):
        raise DataError("a fine class belongs to two coarse classes: Pachinko allocation needs a tree of labels")
    return [[leaf for parent, leaf in pairs if parent == root] for root in sorted({root for root, _ in pairs})]


def _sizes(number: int, clients: int) -> list[int]:
    return [number // clients + (client < number % clients) for client in range(clients)]


def _pick(weights: np.ndarray, there: list[bool], draw: float) -> int:
    """The index where the draw falls among the weights of what is left; weights that all underflow count as equal."""
    left = np.where(there, weights, 0.0)
    if left.sum() <= 0:
        left = np.asarray(there, float)
    total = np.cumsum(left)
    # Just below the end at most: a product that rounds up to the end would fall behind the last class.
    place = min(draw * total[-1], np.nextafter(total[-1], 0))
    return int(np.searchsorted(total, place, side="right"))
