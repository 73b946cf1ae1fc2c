"""One replica of the model in a phase, and the steps that train it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from progfed.blocks import Progressive, state
from progfed.client.kernels import Draws, draws_at_random, fast_layout
from progfed.codec import schema_of
from progfed.recipe.recipe import Loss
from progfed.schedule import Phase
from progfed.tensors import Tensors, finite, of_parts


class Replica:
    """The module of a phase, found once: its tensors by name, what it trains, and room for what has changed."""

    def __init__(self, model: Progressive, phase: Phase, device: str) -> None:
        self.draws = Draws()
        self.module = fast_layout(model.phase_module(phase).to(device), self.draws).train()
        self.draws_at_random = draws_at_random(self.module)
        self.state = state(self.module)
        self.schema = schema_of(self.state)
        learning = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        self.learning, self.names = list(learning.values()), list(learning)
        self._trained = of_parts(self.state, model.trained(phase))
        self.trained = schema_of(self._trained)
        sizes = [self._trained[name].numel() for name in self.trained]
        self._room = torch.empty(sum(sizes), device=device)
        pieces = torch.split(self._room, sizes)
        self._pieces = {
            name: piece.view(shape) for (name, shape), piece in zip(self.trained.items(), pieces, strict=True)
        }

    def load(self, tensors: Tensors) -> None:
        """Put these tensors into the module."""
        torch._foreach_copy_(list(self.state.values()), [tensors[name] for name in self.state])

    def change(self, start: Tensors) -> Tensors | None:
        """What training has changed since `start`, until the next call; None where a number is not finite."""
        for name, piece in self._pieces.items():
            torch.sub(self._trained[name], start[name], out=piece)
        if not finite({"all": self._room}):
            return None
        return {name: piece.cpu() for name, piece in self._pieces.items()}


def total_loss(loss: Loss, outputs: Any, targets: Tensor) -> Tensor:
    """The loss of the phase's head; the sum over heads where it uses several."""
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    losses = [loss(output, targets) for output in outputs]
    return torch.stack(losses).sum() if len(losses) > 1 else losses[0]
