"""Temporary heads: from the features after a block to an output of the shape of the model's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from progfed.blocks import Make, pooled_head
from progfed.errors import UsageError
from progfed.heads import Grid, fitted_grid
from progfed.split.trace import Call

Task = Literal["classification", "tokens", "segmentation"]
Channels = Literal["first", "last"]
Head = nn.Module | Callable[[], nn.Module]
Shape = tuple[int, ...]


def supplied(heads: Sequence[Head], stages: int) -> list[Make]:
    """The user's own temporary heads: modules, which start as they are, or functions that make them."""
    if len(heads) != stages - 1:
        raise UsageError(
            f"{stages} stages need {stages - 1} temporary heads, not {len(heads)}: the last is the model's own"
        )
    return [_copies(head) if isinstance(head, nn.Module) else head for head in heads]


def _copies(module: nn.Module) -> Make:
    return lambda: copy.deepcopy(module)


def infer(output: Shape, ends: Sequence[Call]) -> Task:
    """The task that the shape of the model's output suggests."""
    if len(output) == 2:
        return "classification"
    if len(output) == 3 and all(len(end.shape) == 3 and end.shape[1] == output[1] for end in ends):
        return "tokens"
    if len(output) > 3:
        return "segmentation"
    raise UsageError(
        f"an output of shape {list(output)} does not tell the task: give task='classification', 'tokens' or "
        f"'segmentation', or your own `heads`"
    )


@dataclass(frozen=True)
class Kind:
    """What all temporary heads of a model have in common.

    `output` is the shape of the model's own output. A grid in front of a class for the whole input may have `room`
    parameters. `mask` is the shape of the inputs' attention mask: a head that averages over its tokens then leaves out
    padding.
    """

    task: Task
    output: Shape
    channels: Channels | None
    room: float
    mask: Shape = ()


def temporary(kind: Kind, end: Call, *, tied: str = "") -> Make:
    """The temporary head for the features at the end of a block.

    Args:
        kind: What all temporary heads of the model have in common.
        end: The module that ends the block.
        tied: The name of the embedding that the model's own head uses, where there is one.
    """
    task, output, last = kind.task, kind.output, _channels_last(end, kind.channels)
    width = end.shape[-1 if last else 1]
    places = end.shape[1:-1] if last else end.shape[2:]
    if task == "classification" and len(output) == 2:
        if last and len(kind.mask) == 2 and kind.mask == end.shape[:-1]:
            return lambda: MaskedTokens(width, output[1])
        if fitted := fitted_grid(places, width, output[1], kind.room):
            return lambda: Grid(width, output[1], fitted[0], width=fitted[1], last=last)
        return (lambda: PooledTokens(width, output[1])) if last else pooled_head(width, output[1])
    if task == "tokens" and len(end.shape) == len(output) == 3 and end.shape[1] == output[1]:
        return (lambda: TiedTokens(width, tied)) if tied else (lambda: Tokens(width, output[2]))
    if task == "segmentation" and len(end.shape) == len(output) > 2:
        ratios = tuple(full / some for full, some in zip(output[2:], places, strict=True))
        return lambda: Positions(width, output[1], ratios, last=last)
    raise UsageError(
        f"no temporary head for {task!r} leads from features {list(end.shape)} to an output {list(output)}: "
        f"give another task ('classification', 'tokens', 'segmentation'), other cuts, or your own `heads`"
    )


def _channels_last(end: Call, channels: Channels | None) -> bool:
    """Whether the last axis of the features is that of the channels.

    The layer that made them tells by the sizes of its weights. Where both axes fit, tokens `[batch, tokens, channels]`
    have them last and images `[batch, channels, height, width]` second.
    """
    if channels is not None:
        return channels == "last" and len(end.shape) > 2
    if len(end.shape) < 3:
        return False
    sizes = {
        size for parameter in (end.layer.parameters(recurse=False) if end.layer else ()) for size in parameter.shape
    }
    second, last = end.shape[1] in sizes, end.shape[-1] in sizes
    if second != last:
        return last
    return len(end.shape) == 3 and not isinstance(end.layer, _ConvNd | _NormBase | nn.GroupNorm)


class PooledTokens(nn.Module):
    """For features `[batch, …, channels]`: a norm, the average over all positions, then one fully connected layer."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.fc = nn.Linear(channels, classes)

    def forward(self, features: Tensor) -> Tensor:
        pooled: Tensor = self.fc(self.norm(features).flatten(1, -2).mean(1))
        return pooled


class MaskedTokens(PooledTokens):
    """`PooledTokens` whose average leaves out padding, which the attention mask marks."""

    def forward(self, features: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
        weights = attention_mask.to(features.dtype).unsqueeze(-1)
        pooled: Tensor = (self.norm(features) * weights).sum(1) / weights.sum(1).clamp(min=1)
        scores: Tensor = self.fc(pooled)
        return scores


class Tokens(nn.Module):
    """For a class at each token: a norm and one fully connected layer at every position."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.fc = nn.Linear(channels, classes)

    def forward(self, features: Tensor) -> Tensor:
        scores: Tensor = self.fc(self.norm(features))
        return scores


class TiedTokens(nn.Module):
    """For a model that predicts tokens with its own embedding: a norm, then that embedding, which it borrows.

    A temporary head of its own would weigh as much as the embedding, in every message.
    """

    def __init__(self, channels: int, embedding: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.embedding = embedding

    def forward(self, features: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(self.norm(features), weight)


class Positions(nn.Module):
    """For a class at each position: a convolution of kernel 1, then interpolation to the resolution of the output."""

    def __init__(self, channels: int, classes: int, ratios: tuple[float, ...], *, last: bool) -> None:
        super().__init__()
        self.fc = nn.Linear(channels, classes)
        self._ratios, self._last = ratios, last

    def forward(self, features: Tensor) -> Tensor:
        scores = self.fc(features if self._last else features.movedim(1, -1)).movedim(-1, 1)
        size = [round(length * ratio) for length, ratio in zip(scores.shape[2:], self._ratios, strict=True)]
        if list(scores.shape[2:]) == size:
            return torch.Tensor.contiguous(scores)
        return functional.interpolate(
            scores.contiguous(), size, mode=("linear", "bilinear", "trilinear")[len(size) - 1]
        )

    def extra_repr(self) -> str:
        return f"ratios={self._ratios}, last={self._last}"
