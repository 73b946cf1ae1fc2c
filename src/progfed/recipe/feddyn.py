"""FedDyn (Acar et al., 2021): each client's loss is bent so that its minimum moves to that of all clients together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from progfed.errors import UsageError
from progfed.recipe.method import Method, Visit
from progfed.recipe.optimizers import State
from progfed.tensors import Tensors, add


@dataclass(frozen=True)
class FedDyn(Method):
    """A client goes down its loss - <g_i, w> + alpha/2 ||w - x||^2, and then has g_i <- g_i - alpha (w - x).

    The server keeps h <- h - alpha share mean(w - x), where `share` is that of all clients which took part, and adds
    mean(w - x) - h / alpha to the model. Nothing travels but model and update. The paper weighs clients alike:
    `weighting="uniform"`.

    Args:
        alpha: How strongly a client is held; the smaller, the more steps it may need.
    """

    alpha: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.alpha < float("inf"):
            raise UsageError(f"the alpha of FedDyn is a positive number, not {self.alpha}")

    def train(self, visit: Visit) -> None:
        own = visit.remembered("g")
        visit.run(
            pull=lambda params: {name: self.alpha * (params[name] - visit.start[name]) - g for name, g in own.items()}
        )
        visit.keep("g", add(own, {name: -self.alpha * value for name, value in visit.change().items()}))

    def init(self, params: Tensors) -> State:
        return {"h": {name: torch.zeros_like(value) for name, value in params.items()}}

    def update(self, mean: Tensors, state: State, shares: Mapping[str, float]) -> tuple[Tensors, State]:
        moved = {name: value * (-self.alpha * shares[name]) for name, value in mean.items()}
        after = add(state["h"], moved)
        return {name: value - after[name] / self.alpha for name, value in mean.items()}, {"h": after}
