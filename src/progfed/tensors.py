"""Arithmetic on named tensors: every model, update and optimizer state here is a `dict[str, Tensor]`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


def add(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Tensors:
    """`left + right`, where names that `right` lacks stay as they are.

    >>> add({"w": torch.tensor([1.0]), "b": torch.tensor([5.0])}, {"w": torch.tensor([2.0])})
    {'w': tensor([3.]), 'b': tensor([5.])}
    """
    return {name: value + right[name] if name in right else value for name, value in left.items()}


def sub(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Tensors:
    """`left - right` for the names of `left`."""
    return {name: value - right[name] for name, value in left.items()}


def part(name: str) -> str:
    """The part of the model that a parameter belongs to: `E2.conv.weight` -> `E2`."""
    return name.split(".", 1)[0]


def aside(name: str) -> bool:
    """Whether a tensor travels beside those of the model: `c/E2.weight` does, `E2.weight` does not."""
    return "/" in part(name)


def of_parts(tensors: Mapping[str, Tensor], parts: Iterable[str]) -> Tensors:
    """The entries that belong to these parts of the model."""
    wanted = set(parts)
    return {name: value for name, value in tensors.items() if part(name) in wanted}


def count(tensors: Mapping[str, Tensor]) -> int:
    """How many numbers these tensors hold."""
    return sum(value.numel() for value in tensors.values())


def mean(weighted: Iterable[tuple[float, Mapping[str, Tensor]]]) -> Tensors:
    """The weighted mean per name, over the entries that contain the name.

    Entries are consumed one at a time in the order given, so memory does not grow with their number and
    the order of the floating-point sum is the caller's. Weights count relative to the first, so that the mean
    of one entry is that entry to the bit.

    >>> mean([(1, {"w": torch.tensor([2.0])}), (3, {"w": torch.tensor([6.0])})])
    {'w': tensor([5.])}
    """
    total: Tensors = {}
    first: dict[str, float] = {}
    weights: dict[str, float] = {}
    for weight, tensors in weighted:
        for name, value in tensors.items():
            if name in total:
                relative = weight / first[name]
                total[name].add_(value, alpha=relative)
                weights[name] += relative
            else:
                total[name], first[name], weights[name] = value.clone(), weight, 1.0
    return {name: value.div_(weights[name]) for name, value in total.items()}


def finite(tensors: Mapping[str, Tensor]) -> bool:
    """Whether every number is finite."""
    # a finite sum proves finite numbers at a fraction of the cost; finite numbers may still overflow a sum
    return all(math.isfinite(value.sum()) or bool(torch.isfinite(value).all()) for value in tensors.values())


def bounded(tensors: Mapping[str, Tensor], limit: float) -> bool:
    """Whether every number is finite and of a magnitude up to `limit`.

    >>> bounded({"w": torch.tensor([1.0, -2.0])}, 2.0), bounded({"w": torch.tensor([float("nan")])}, 2.0)
    (True, False)
    """
    ranges = [value.aminmax() for value in tensors.values() if value.numel()]
    return all(float(low) >= -limit and float(high) <= limit for low, high in ranges)


def prefixed(groups: Mapping[str, Mapping[str, Tensor]] | Mapping[int, Mapping[str, Tensor]]) -> Tensors:
    """`a: x, y` and `b: x` as `a/x, a/y, b/x`."""
    return {f"{group}/{name}": value for group, tensors in groups.items() for name, value in tensors.items()}


def grouped(tensors: Mapping[str, Tensor]) -> dict[str, Tensors]:
    """`a/x, a/y, b/x` as `a: x, y` and `b: x`."""
    groups: dict[str, Tensors] = {}
    for key, value in tensors.items():
        group, name = key.split("/", 1)
        groups.setdefault(group, {})[name] = value
    return groups


T = TypeVar("T")


def tree_map(function: Callable[[Tensor], Tensor], tree: T) -> T:
    """The same tree of tuples, lists and dicts, with `function` applied to every tensor in it."""
    if isinstance(tree, Tensor):
        return function(tree)  # type: ignore[return-value]
    if isinstance(tree, dict):
        return {key: tree_map(function, value) for key, value in tree.items()}  # type: ignore[return-value]
    if isinstance(tree, tuple | list):
        return type(tree)(tree_map(function, value) for value in tree)
    raise TypeError(f"inputs must be tensors, or tuples, lists and dicts of tensors; found {type(tree).__name__}")


def leaves(tree: object) -> list[Tensor]:
    """The tensors of a tree, in order."""
    found: list[Tensor] = []

    def see(leaf: Tensor) -> Tensor:
        found.append(leaf)
        return leaf

    tree_map(see, tree)
    return found


def tree_len(tree: object) -> int:
    """The number of examples in a tree of tensors whose first dimension is the example."""
    lengths = {len(leaf) for leaf in leaves(tree)}
    if len(lengths) != 1:
        raise ValueError(f"the tensors of one set of inputs need one common first dimension, found {sorted(lengths)}")
    return lengths.pop()
