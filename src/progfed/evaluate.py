"""How good a model is: accuracy for classification, Dice for segmentation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from progfed.examples import Examples

Metric = Callable[[Tensor, Tensor], Tensor]
"""Outputs and targets of a batch -> the score of each example, as a vector."""


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the largest output is the target's, else 0; positions of a sequence are averaged."""
    hits = (outputs.argmax(1) == targets).double()
    return hits.flatten(1).mean(1) if hits.dim() > 1 else hits


def dice(outputs: Tensor, targets: Tensor) -> Tensor:
    """The Dice score 2|A n B| / (|A| + |B|) of each example, averaged over its foreground classes.

    Integer targets `[batch, …]` are labels with background 0; targets of the outputs' shape `[batch, regions, …]` are
    overlapping regions (such as whole tumour, core, enhancing), predicted where the output is positive.
    A class that is absent from both prediction and truth counts as 1.
    """
    if outputs.shape == targets.shape:
        predicted, truth = outputs > 0, targets > 0.5
    else:
        classes = torch.arange(1, outputs.shape[1]).view(1, -1, *[1] * (targets.dim() - 1))
        predicted, truth = outputs.argmax(1, keepdim=True) == classes, targets.unsqueeze(1) == classes
    overlap = (predicted & truth).flatten(2).sum(2).double()
    total = predicted.flatten(2).sum(2) + truth.flatten(2).sum(2)
    return torch.where(total > 0, 2 * overlap / total.clamp(min=1), torch.ones_like(overlap)).mean(1)


def evaluate(module: nn.Module, examples: Examples, metric: Metric = accuracy, *, batch: int = 250) -> float:
    """The mean score over the examples, in percent."""
    module.eval()
    scores: list[Tensor] = []
    with torch.inference_mode():
        for start in range(0, examples.number, batch):
            piece = examples.take(slice(start, start + batch))
            scores.append(metric(_last(module(piece.inputs)), piece.targets))
    return 100 * float(torch.cat(scores).mean())


def _last(outputs: Any) -> Tensor:
    """The deepest head's output, where a phase uses several."""
    final: Tensor = outputs[-1] if isinstance(outputs, tuple) else outputs
    return final
