"""Losses that torch does not have in this form: for segmentation, for tokens, and between the heads of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from progfed.errors import UsageError


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


@dataclass(frozen=True)
class Distil:
    """Lets heads learn from each other, as `Local(between=Distil())`: each is drawn towards what the others predict.

    For each head the mean, over the other heads, of the Kullback-Leibler divergence from the other's probabilities to
    its own (DepthFL's term). A head teaches as it is: no gradient reaches it as a teacher.

    Args:
        weight: What the term is multiplied by.
        dim: The dimension of the classes: 1 for `[batch, classes, …]`, -1 for scores of tokens.

    >>> Distil()([torch.tensor([[0.0, 1.0]]), torch.tensor([[2.0, 3.0]])]).abs() < 1e-6
    tensor(True)
    """

    weight: float = 1.0
    dim: int = 1

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise UsageError(f"the weight of Distil is a positive number, not {self.weight}")

    def __call__(self, outputs: Sequence[Tensor]) -> Tensor:
        """The term for the outputs of two or more heads, a mean over examples and positions."""
        dim = self.dim + (self.dim >= 0)  # after the dimension of the heads
        own = torch.stack([torch.log_softmax(output, self.dim) for output in outputs])
        known = own.detach()
        taught = known.exp()
        # all pairs at once; a head and itself add nothing, neither to the sum nor to its gradient
        apart = len(outputs) * (taught * known).sum((0, dim)) - (taught.sum(0) * own.sum(0)).sum(self.dim)
        return self.weight * apart.mean() / (len(outputs) - 1)
