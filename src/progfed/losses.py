"""Losses that torch does not have in this form: for segmentation, and for tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def dice_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy plus one minus the soft Dice score, averaged over classes or regions and examples.

    Args:
        outputs: Scores `[batch, classes, …]`, before softmax or sigmoid.
        targets: Integer labels `[batch, …]` with background 0, which the Dice term leaves out; or, in the shape of the
            outputs, overlapping regions, each predicted on its own.
    """
    if outputs.shape == targets.shape:
        entropy = functional.binary_cross_entropy_with_logits(outputs, targets)
        predicted, truth = torch.sigmoid(outputs), targets
    else:
        entropy = functional.cross_entropy(outputs, targets)
        predicted = torch.softmax(outputs, 1)[:, 1:]
        classes = torch.arange(1, outputs.shape[1], device=targets.device).view(1, -1, *[1] * (targets.dim() - 1))
        truth = (targets.unsqueeze(1) == classes).to(predicted.dtype)
    overlap = (predicted * truth).flatten(2).sum(2)
    total = predicted.flatten(2).sum(2) + truth.flatten(2).sum(2)
    return entropy + 1 - ((2 * overlap + 1) / (total + 1)).mean()


def token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of next-token scores, averaged over the positions whose target is not -100.

    Args:
        outputs: Scores `[batch, time, vocabulary]`.
        targets: Token numbers `[batch, time]`; -100 where a position does not count.

    >>> token_loss(torch.zeros(2, 3, 4), torch.tensor([[0, 1, 2], [3, -100, -100]])).exp()
    tensor(4.)
    """
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=-100)
