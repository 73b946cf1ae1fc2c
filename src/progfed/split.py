"""From an ordinary model to a progressive one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from progfed.blocks import Make, Progressive, pooled_head
from progfed.errors import UsageError
from progfed.tensors import tree_map


def split(
    model: nn.Sequential, *, stages: int, example: Any, head: int = 1, cuts: Sequence[int] | None = None
) -> Progressive:
    """Turn an `nn.Sequential` into a `Progressive`; the last `head` children are G_S, the rest is cut into blocks.

    `cuts` are the indices of the children that open blocks 2..S; without them they balance the number of parameters.
    The weights the model has now are those that training starts from. Temporary heads are pooled heads whose width
    is found by running `example` (a batch of any size) through the blocks.
    """
    if not isinstance(model, nn.Sequential):
        raise UsageError(
            f"split takes an nn.Sequential, not {type(model).__name__}: give Progressive(blocks=…, heads=…) instead"
        )
    body, final = list(model)[: len(model) - head], list(model)[len(model) - head :]
    if not 1 <= stages <= len(body):
        raise UsageError(
            f"{len(body)} layers before the head can make 1 to {len(body)} stages, not {stages}: use fewer stages"
        )
    borders = [0, *(cuts if cuts is not None else _balanced(body, stages)), len(body)]
    if len(borders) != stages + 1 or any(a >= b for a, b in pairwise(borders)):
        raise UsageError(f"cuts {borders[1:-1]} must be {stages - 1} increasing indices between 1 and {len(body) - 1}")
    blocks = [nn.Sequential(*body[a:b]) for a, b in pairwise(borders)]
    last = nn.Sequential(*final)
    widths, classes = _widths(blocks, last, example)
    return Progressive(
        blocks=tuple(_copies(block) for block in blocks),
        heads=(*(pooled_head(width, classes) for width in widths[:-1]), _copies(last)),
        example=tree_map(lambda leaf: leaf[:1], example),
        name="split model",
    )


def _copies(module: nn.Module) -> Make:
    return lambda: copy.deepcopy(module)


def _widths(blocks: list[nn.Sequential], head: nn.Module, example: Any) -> tuple[list[int], int]:
    """The channels after each block, and the number of outputs, found by running the example."""
    modes = [(module, module.training) for block in (*blocks, head) for module in block.modules()]
    widths: list[int] = []
    with torch.no_grad():
        features = example
        for block in blocks:
            features = block.eval()(features)
            widths.append(features.shape[1])
        classes = int(head.eval()(features).shape[1])
    for module, training in modes:
        module.training = training
    return widths, classes


def _balanced(layers: list[nn.Module], stages: int) -> list[int]:
    """Borders that give every block about the same number of parameters, and never a block without layers."""
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    total = sum(sizes)
    cuts: list[int] = []
    for s in range(1, stages):
        low, high = (cuts[-1] if cuts else 0) + 1, len(layers) - (stages - s)
        cuts.append(min(range(low, high + 1), key=lambda cut: abs(sum(sizes[:cut]) - total * s / stages)))
    return cuts
