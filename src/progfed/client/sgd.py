"""The client's optimizer: SGD in one fused pass, equal to `torch.optim.SGD` to the bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from progfed.recipe.recipe import Local

Pulls = Callable[[], Sequence[Tensor | None]]
"""What is added to the gradient of each parameter in turn, if anything is."""
_LANES = 8


def gradients(loss: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`torch.autograd.grad`, without its checks: for a model of a few layers they cost a third of the backward pass."""
    engine = torch.autograd.Variable._execution_engine
    found: tuple[Tensor, ...] = engine.run_backward(
        (loss,),
        (torch.ones_like(loss),),
        False,  # the graph is not kept
        False,  # nor can its gradients be differentiated
        tuple(parameters),
        allow_unreachable=False,
        accumulate_grad=False,
    )
    return found


def clipped(grads: Sequence[Tensor], norm: float) -> list[Tensor]:
    """Gradients of at most this norm, as `torch.nn.utils.clip_grad_norm_` makes them, to the bit."""
    factor = (norm / (get_total_norm(grads) + 1e-6)).clamp(max=1.0)
    scaled = list(grads)
    if len({grad.untyped_storage()._cdata for grad in scaled}) < len(scaled):  # two would be scaled twice in place
        return list(torch._foreach_mul(scaled, factor))
    torch._foreach_mul_(scaled, factor)
    return scaled


class Sgd:
    """SGD with clipping, weight decay, FedProx's pull towards the start, and momentum: `torch.optim.SGD` to the bit.

    `taken` counts the steps, and `pulls`, where it is set, says what is added to the gradients of each. One fused pass
    over memory instead of four. Its kernel rounds the last few elements differently where momentum
    meets a length that no vector register divides; those few small tensors take the plain operations.
    """

    def __init__(self, parameters: Sequence[Tensor], local: Local, lr: float) -> None:
        self._parameters, self._local, self._lr = list(parameters), local, lr
        self._norm = local.largest_norm(lr)
        self._start = [p.detach().clone() for p in parameters] if local.prox else []
        fits = [not local.momentum or p.numel() % _LANES == 0 for p in parameters]
        self._fit = [place for place, fit in enumerate(fits) if fit]
        self._odd = [place for place, fit in enumerate(fits) if not fit]
        self._velocity: list[Tensor] = []
        self._gathered: list[Tensor] = []
        self._waiting = 0
        self.taken = 0
        self.pulls: Pulls | None = None
        # `_pull` takes care of weight decay where there is a pull: the order of the sum is part of the result
        self._decay = 0.0 if local.prox else local.weight_decay

    def resume(self, velocity: Sequence[Tensor | None]) -> None:
        """Begin with the momentum of an earlier round, where a parameter has any; others begin at zero."""
        self._velocity = [
            torch.zeros_like(p) if kept is None else torch.empty_like(p).copy_(kept)
            for p, kept in zip(self._parameters, velocity, strict=True)
        ]

    @property
    def velocity(self) -> list[Tensor]:
        """The momentum after the last step, of each parameter in turn; empty before the first step."""
        return self._velocity

    def __call__(self, loss: Tensor, *, whole: bool = True) -> None:
        """Take a step down the loss; with `accumulate`, down the mean of so many losses when the last of them came.

        After the share of a piece of a batch (not `whole`) the gradient waits for that of the rest.
        """
        grads = [
            grad if grad.stride() == p.stride() else torch.empty_like(p).copy_(grad)
            for grad, p in zip(gradients(loss, self._parameters), self._parameters, strict=True)
        ]
        if self._local.accumulate == 1 and whole and not self._gathered:
            self._step(grads)
            return
        # not in place: gradients may share memory
        self._gathered = list(torch._foreach_add(self._gathered, grads)) if self._gathered else grads
        self._waiting += whole
        if self._waiting == self._local.accumulate:
            self.finish()

    def finish(self) -> None:
        """Take the step for gradients that still wait."""
        if self._waiting:
            grads, number = self._gathered, self._waiting
            self._gathered, self._waiting = [], 0
            self._step(list(torch._foreach_div(grads, number)) if number > 1 else grads)

    def _step(self, grads: list[Tensor]) -> None:
        with torch.no_grad():
            if self._norm is not None:
                grads = clipped(grads, self._norm)
            if self._local.prox:
                self._pull(grads)
            if self.pulls is not None:
                grads = [grad if by is None else grad + by for grad, by in zip(grads, self.pulls(), strict=True)]
            self.taken += 1
            first = bool(self._local.momentum) and not self._velocity
            if first:
                self._velocity = [torch.zeros_like(p) for p in self._parameters]
            if self._fit:
                self._fused(grads, first)
            if self._odd:
                self._plain(grads)

    def _pull(self, grads: list[Tensor]) -> None:
        if self._local.weight_decay:
            torch._foreach_add_(grads, self._parameters, alpha=self._local.weight_decay)
        torch._foreach_add_(grads, self._parameters, alpha=self._local.prox)
        torch._foreach_sub_(grads, self._start, alpha=self._local.prox)

    def _fused(self, grads: list[Tensor], first: bool) -> None:
        torch._fused_sgd_(
            [self._parameters[place] for place in self._fit],
            [grads[place] for place in self._fit],
            [self._velocity[place] for place in self._fit] if self._velocity else [],
            weight_decay=self._decay,
            momentum=self._local.momentum,
            lr=self._lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=first,
        )

    def _plain(self, grads: list[Tensor]) -> None:
        odd = [grads[place] for place in self._odd]
        parameters, velocity = (
            [tensors[place] for place in self._odd] for tensors in (self._parameters, self._velocity)
        )
        if self._decay:
            torch._foreach_add_(odd, parameters, alpha=self._decay)
        torch._foreach_mul_(velocity, self._local.momentum)
        torch._foreach_add_(velocity, odd)
        torch._foreach_add_(parameters, velocity, alpha=-self._lr)
