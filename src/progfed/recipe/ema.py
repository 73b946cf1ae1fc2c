"""The exponential moving average of the model: what is evaluated and saved, while clients train the model itself."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from progfed.errors import UsageError
from progfed.recipe.optimizers import ServerOptimizer, State, fedavg
from progfed.tensors import Tensors, sub


@dataclass(frozen=True)
class Ema:
    """A server optimizer that takes the steps of another one, and evaluates a_t = decay a_(t-1) + (1 - decay) x_t.

    x_t is the model after round t. What is kept is the difference x_t - a_t, the `lag`, which becomes `decay` times the
    sum of itself and the step; it is 0 for a new name, so that the average of a block begins when the block does.

    Args:
        decay: The share of the average that stays in a round.
        of: The optimizer whose steps are taken.
    """

    decay: float = 0.9
    of: ServerOptimizer = field(default_factory=fedavg)

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise UsageError(f"the decay of an average is 0 to below 1, not {self.decay}")

    @property
    def reset(self) -> bool:
        return self.of.reset

    def init(self, params: Tensors) -> State:
        return {"lag": {name: torch.zeros_like(value) for name, value in params.items()}, **self.of.init(params)}

    def update(self, delta: Tensors, state: State) -> tuple[Tensors, State]:
        step, after = self.of.update(delta, {slot: kept for slot, kept in state.items() if slot != "lag"})
        lag = {
            name: self.decay * (value + step[name] if name in step else value) for name, value in state["lag"].items()
        }
        return step, {**after, "lag": lag}

    def evaluated(self, params: Tensors, state: State) -> Tensors:
        """The average; buffers such as BatchNorm's statistics are those of the model."""
        lag = state["lag"]
        return sub(params, {name: lag.get(name, torch.zeros_like(value)) for name, value in params.items()})
