"""A client's steps with an optimizer of `torch.optim`: gradients are in `.grad`, as in any training loop."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from progfed.client.sgd import Pulls, Sgd
from progfed.recipe.local_optimizer import made
from progfed.recipe.recipe import Local


def stepper(parameters: Sequence[Tensor], local: Local, lr: float) -> Sgd | TorchOptimizer:
    """What turns the losses of a round into steps: the fused SGD, or the optimizer that was asked for."""
    return Sgd(parameters, local, lr) if local.optimizer is None else TorchOptimizer(parameters, local, lr)


class TorchOptimizer:
    """Steps with the optimizer of `Local.optimizer`, whose state begins anew.

    The gradients of `accumulate` losses are averaged; then they are clipped, FedProx's pull and that of a method are
    added, and the step is taken.
    """

    def __init__(self, parameters: Sequence[Tensor], local: Local, lr: float) -> None:
        assert local.optimizer is not None
        self._parameters, self._local, self._norm = list(parameters), local, local.largest_norm(lr)
        self._start = [p.detach().clone() for p in parameters] if local.prox else []
        settings = {"momentum": local.momentum, "weight_decay": local.weight_decay}
        self._optimizer = made(local.optimizer, parameters, lr=lr, **settings)
        self._optimizer.zero_grad()
        self._waiting = 0
        self.taken = 0
        self.pulls: Pulls | None = None

    def __call__(self, loss: Tensor, *, whole: bool = True) -> None:
        """Add the gradients of a loss, and take a step where enough of them have come together.

        The share of a piece of a batch (not `whole`) does not count as one.
        """
        loss.backward()  # type: ignore[no-untyped-call]
        self._waiting += whole
        if self._waiting == self._local.accumulate:
            self.finish()

    def finish(self) -> None:
        """Take the step for gradients that still wait."""
        if not self._waiting:
            return
        grads = [p.grad for p in self._parameters if p.grad is not None]
        if self._waiting > 1:
            torch._foreach_div_(grads, self._waiting)
        if self._norm is not None:
            clip_grad_norm_(self._parameters, self._norm)
        for p, start in zip(self._parameters, self._start, strict=False):
            if p.grad is not None:
                p.grad.add_(p.detach() - start, alpha=self._local.prox)
        for p, by in zip(self._parameters, self.pulls() if self.pulls is not None else (), strict=False):
            if by is not None:
                p.grad = by.clone() if p.grad is None else p.grad.add_(by)
        self._optimizer.step()
        self.taken += 1
        self._optimizer.zero_grad()
        self._waiting = 0
