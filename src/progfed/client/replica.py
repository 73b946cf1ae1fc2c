"""One replica of the model in a phase, and the steps that train it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from progfed.blocks import Progressive, state
from progfed.client.kernels import Draws, draws_at_random, fast_layout
from progfed.recipe.method import PLAIN, Method
from progfed.recipe.recipe import Loss
from progfed.recipe.travel import travel
from progfed.schedule import Phase
from progfed.tensors import Tensors, aside, finite


class Replica:
    """The module of a phase, found once: its tensors by name, what it trains, and room for what has changed.

    `down` and `up` are the names and shapes of the messages in both directions, `private` the names in neither, and
    `trained` the parameters that learn and are sent back.
    """

    def __init__(self, model: Progressive, phase: Phase, device: str, method: Method = PLAIN) -> None:
        self.phase, self.draws = phase, Draws()
        self.module = fast_layout(model.phase_module(phase).to(device), self.draws).train()
        self.draws_at_random = draws_at_random(self.module)
        self.state = state(self.module)
        crossing = travel(model, phase, method, self.module)
        self.down, self.up = crossing.down, crossing.up
        self.trained, self.private = crossing.trained, crossing.private
        self.params = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        back = {name: shape for name, shape in self.up.items() if not aside(name)}
        sizes = [self.state[name].numel() for name in back]
        self._room = torch.empty(sum(sizes), device=device)
        pieces = torch.split(self._room, sizes)
        self._pieces = {name: piece.view(shape) for (name, shape), piece in zip(back.items(), pieces, strict=True)}

    def load(self, tensors: Tensors) -> None:
        """Put these tensors into the module."""
        torch._foreach_copy_(list(self.state.values()), [tensors[name] for name in self.state])

    def change(self, start: Tensors) -> Tensors | None:
        """What training has changed since `start`, until the next call; None where a number is not finite."""
        for name, piece in self._pieces.items():
            torch.sub(self.state[name], start[name], out=piece)
        if not finite({"all": self._room}):
            return None
        return {name: piece.cpu() for name, piece in self._pieces.items()}

    def own(self) -> Tensors:
        """The tensors that never leave the client, as they are now."""
        return {name: self.state[name].cpu().clone() for name in sorted(self.private)}


def total_loss(loss: Loss, outputs: Any, targets: Tensor) -> Tensor:
    """The loss of the phase's head; the sum over heads where it uses several."""
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    losses = [loss(output, targets) for output in outputs]
    return torch.stack(losses).sum() if len(losses) > 1 else losses[0]
