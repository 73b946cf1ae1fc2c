"""One replica of the model in a phase, and the steps that train it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from progfed.blocks import Progressive, state
from progfed.client.kernels import Draws, draws_at_random, fast_layout
from progfed.recipe.method import PLAIN, Method
from progfed.recipe.recipe import Between, Loss
from progfed.recipe.travel import travel
from progfed.schedule import Phase
from progfed.tensors import Tensors, aside, finite, part


@dataclass(frozen=True)
class Turn:
    """What a client trains at once: a module, and its parameters that learn, by name."""

    module: nn.Module
    params: dict[str, nn.Parameter]


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
        self.turns = turns_of(model, phase, self.module)
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


def turns_of(model: Progressive, phase: Phase, module: nn.Module) -> tuple[Turn, ...]:
    """What a client trains in a phase, one after the other, on the phase's module: its first blocks, and some heads."""
    made, turns = dict(module.named_children()), phase.turns
    modules = [module if len(turns) == 1 else model.joined(turn, made) for turn in turns]
    return tuple(
        Turn(one, {name: p for name, p in one.named_parameters() if part(name) in model.trained(turn)})
        for one, turn in zip(modules, turns, strict=True)
    )


def total_loss(loss: Loss, outputs: Any, targets: Tensor, between: Between | None = None) -> Tensor:
    """The loss of the phase's head; the sum over heads where it uses several, and what there is between them."""
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    losses = [loss(output, targets) for output in outputs]
    if len(losses) == 1:
        return losses[0]
    total = torch.stack(losses).sum()
    return total if between is None else total + between(outputs)
