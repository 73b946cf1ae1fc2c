"""Temporary heads that see where things are: features are averaged over the cells of a small grid, then one layer.

A global average of one or two convolutions carries little, so the shallow stages learn little under it. A grid carries
more and costs more, positions x channels x classes, so its size is chosen by what it may cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from progfed.blocks import Make, Pooled, Progressive, pooled_head
from progfed.errors import UsageError

KINDS = ("grid", "pooled")
"""The temporary heads that a model may have: the largest grid that costs little, or the paper's global average."""

SHARE = 0.1
"""The most parameters of a temporary head, as a share of the full model's: what its rounds may cost in addition."""

LEAST = 8
"""The fewest channels that the cells of a grid are projected to; rather a smaller grid than fewer."""

_SIDES = {1: (16, 8, 4, 2), 2: (4, 3, 2), 3: (2,)}
_POOL: dict[int, Callable[[Tensor, Any], Tensor]] = {
    1: functional.adaptive_avg_pool1d,
    2: functional.adaptive_avg_pool2d,
    3: functional.adaptive_avg_pool3d,
}


class Grid(nn.Module):
    """Averages features over the cells of a grid, then applies one fully connected layer to all averages.

    The number of positions may be any: cells overlap, or repeat where there are fewer positions than cells.

    Args:
        channels: The channels of the features, which are `[batch, channels, …]`.
        classes: The number of outputs.
        grid: How many cells along each axis of positions.
        width: To how many channels each cell is projected first, by weights that all cells share; None: no projection.
        last: Features are `[batch, …, channels]` instead, as of tokens, and are normalised first.
    """

    def __init__(
        self, channels: int, classes: int, grid: Sequence[int], *, width: int | None = None, last: bool = False
    ) -> None:
        super().__init__()
        self.grid = tuple(grid)
        if len(self.grid) not in _POOL or min(self.grid) < 1:
            raise UsageError(f"a grid has 1 to 3 sides, each of 1 or more cells, not {self.grid}")
        if last:
            self.norm = nn.LayerNorm(channels)
        if width is not None:
            self.project = nn.Linear(channels, width)
        self.fc = nn.Linear(math.prod(self.grid) * (width or channels), classes)
        self._projects, self._last = width is not None, last

    def forward(self, features: Tensor) -> Tensor:
        if self._last:
            features = self.norm(features).movedim(-1, 1)
        cells = _POOL[len(self.grid)](features, self.grid)
        if self._projects:
            cells = self.project(cells.flatten(2).transpose(1, 2))
        scores: Tensor = self.fc(cells.flatten(1))
        return scores

    def extra_repr(self) -> str:
        return f"grid={self.grid}, last={self._last}"


def grid_head(channels: int, classes: int, grid: Sequence[int], *, width: int | None = None) -> Make:
    """A temporary head that averages features over the cells of a grid, then applies one fully connected layer.

    Args:
        channels: The channels of the features that it takes, `[batch, channels, …]`.
        classes: The number of outputs.
        grid: How many cells along each axis of positions.
        width: To how many channels each cell is projected first; None: to none, all channels are used.

    Returns:
        A function that makes such a head, as `Progressive` takes it.

    >>> grid_head(8, 10, (2, 2))()(torch.zeros(1, 8, 7, 5)).shape
    torch.Size([1, 10])
    """
    return lambda: Grid(channels, classes, grid, width=width)


def fitted_grid(
    places: Sequence[int], channels: int, classes: int, room: float
) -> tuple[tuple[int, ...], int | None] | None:
    """The largest grid over features of this size whose head has at most `room` parameters, and the width of its cells.

    Where all channels do not fit, as with many classes, the width is the number of channels that does, but at least
    `LEAST`; it is None where all fit. The result is None where no grid fits.

    >>> fitted_grid((15, 15), 32, 10, room=6_000), fitted_grid((6, 2), 64, 100, room=12_000)
    (((4, 4), None), ((4, 2), 13))
    """
    for side in _SIDES.get(len(places), ()):
        grid = tuple(min(side, size) for size in places)
        cells = math.prod(grid)
        if cells > 1 and (cells * channels + 1) * classes <= room:
            return grid, None
        width = int((room - classes) // (channels + 1 + cells * classes))
        if cells > 1 and LEAST <= width < channels:
            return grid, width
    return None


def known(heads: str) -> str:
    """The name of a kind of temporary heads, if there is such a kind; otherwise an error that lists them."""
    if heads in KINDS:
        return heads
    raise UsageError(f"heads is {heads!r}, but temporary heads are 'grid' or 'pooled': give one of these")


def with_heads(model: Progressive, heads: str) -> Progressive:
    """The same model with other temporary heads.

    Args:
        model: A model whose temporary heads are pooled ones; other heads stay as they are.
        heads: `"grid"` replaces each head by the largest grid that has at most a tenth (`SHARE`) of the full model's
            parameters; `"pooled"` returns the model as it is.

    >>> chosen = with_heads(Progressive((nn.Identity,) * 2, (pooled_head(9, 2),) * 2, torch.zeros(1, 9, 8)), "pooled")
    >>> chosen.make("G1")
    Pooled(
      (fc): Linear(in_features=9, out_features=2, bias=True)
    )
    """
    if known(heads) == "pooled":
        return model
    with torch.device("meta"):
        whole = sum(parameter.numel() for parameter in model.at(model.stages).parameters())
    made = [_gridded(model, stage, SHARE * whole) for stage in range(1, model.stages)]
    return replace(model, heads=(*made, model.heads[-1]), name=f"{model.name}-grid")


def _gridded(model: Progressive, stage: int, room: float) -> Make:
    """The head of a stage, replaced by a grid if it is a pooled head and some grid has at most `room` parameters."""
    seen: list[Tensor] = []
    with torch.device("meta"), torch.no_grad():
        module = model.at(stage).eval()
        head: Any = module.get_submodule(model.head(stage))
        if not isinstance(head, Pooled):
            return model.heads[stage - 1]
        head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        module(torch.empty_like(model.example, device="meta"))
    _, channels, *places = seen[0].shape
    classes = head.fc.out_features
    fitted = fitted_grid(places, channels, classes, room)
    return grid_head(channels, classes, fitted[0], width=fitted[1]) if fitted else pooled_head(channels, classes)
