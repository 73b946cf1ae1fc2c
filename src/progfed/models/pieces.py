"""What VGGs and ResNets share: a network as a row of pieces, and how to cut the row into stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from progfed.blocks import Make, Progressive, pooled_head
from progfed.errors import UsageError

Norm = Callable[[int], nn.Module]
"""The number of channels -> a normalisation layer."""

Cuts = Mapping[int, tuple[int, ...]]
"""The number of stages -> how many pieces each block takes, in order."""


@dataclass(frozen=True)
class Piece:
    """A part of a network that no cut divides: its name inside a block, how to make it, and its output channels."""

    name: str
    make: Make
    width: int


def norm_of(kind: str | None) -> Norm:
    """Makes the norm of a width: `group` has 2 groups and no buffers (the paper's federated rows), or `batch`."""
    if kind == "group":
        return lambda width: nn.GroupNorm(2, width)
    if kind == "batch":
        return nn.BatchNorm2d
    raise UsageError(f"norm is {kind!r}, but only 'group' and 'batch' are known: give one of these")


def cut(pieces: Sequence[Piece], cuts: Cuts, stages: int, *, head: Make, classes: int, name: str) -> Progressive:
    """The `Progressive` whose blocks consist of the pieces in order; temporary heads are pooled (Sec. 3.1)."""
    if stages not in cuts:
        known = ", ".join(map(str, sorted(cuts)))
        raise UsageError(f"{name} has no cut into {stages} stages: choose one of {known}")
    if classes < 1:
        raise UsageError(f"{name} needs at least 1 class, not {classes}")
    groups: list[Sequence[Piece]] = []
    for size in cuts[stages]:
        start = sum(map(len, groups))
        groups.append(pieces[start : start + size])
    return Progressive(
        blocks=tuple(_block(group) for group in groups),
        heads=(*(pooled_head(group[-1].width, classes) for group in groups[:-1]), head),
        example=torch.zeros(1, 3, 32, 32),
        name=name,
    )


def _block(group: Sequence[Piece]) -> Make:
    def make() -> nn.Module:
        block = nn.Sequential()
        for piece in group:
            block.add_module(piece.name, piece.make())
        return block

    return make
