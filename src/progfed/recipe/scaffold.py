"""SCAFFOLD (Karimireddy et al., 2020): control variates take out of each step what a client's own data add to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from progfed.codec import Codec, Float, Schema, codec
from progfed.recipe.method import Method, Visit, slot
from progfed.recipe.optimizers import State
from progfed.tensors import Tensors, add, aside, sub

_PLAIN = Float()


@dataclass(frozen=True)
class Scaffold(Method):
    """Every step goes down the gradient - c_i + c; c_i is the client's control variate, c the mean over all clients.

    After K steps with rate lr from x to y a client has c_i <- c_i - c + (x - y) / (K lr), the paper's option II, and
    sends by how much that is more than before. c travels beside the model, so a round has about twice the bytes in
    both directions. With momentum or clipping the formula is the paper's heuristic no longer, and still what is done.

    Args:
        codec: How control variates are encoded, or its name, such as `"LQ-8"`.
    """

    codec: Codec | str = _PLAIN  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if isinstance(self.codec, str):
            object.__setattr__(self, "codec", codec(self.codec))

    def train(self, visit: Visit) -> None:
        common, own = visit.sent["c"], visit.remembered("c")
        drift = sub(common, own)
        visit.run(pull=lambda _: drift)
        if not visit.steps:
            visit.send("c", {name: torch.zeros_like(value) for name, value in own.items()})
            return
        after = {
            name: own[name] - common[name] - value / (visit.steps * visit.lr) for name, value in visit.change().items()
        }
        visit.keep("c", after)
        visit.send("c", sub(after, own))

    def down(self, trained: Schema) -> Schema:
        return slot("c", trained)

    def up(self, trained: Schema) -> Schema:
        return slot("c", trained)

    def init(self, params: Tensors) -> State:
        return {"c": {name: torch.zeros_like(value) for name, value in params.items()}}

    def update(self, mean: Tensors, state: State, shares: Mapping[str, float]) -> tuple[Tensors, State]:
        """c moves by the share of the population that took part times the mean of their changes."""
        moved = {name.partition("/")[2]: value * shares[name] for name, value in mean.items() if aside(name)}
        return {name: value for name, value in mean.items() if not aside(name)}, {"c": add(state["c"], moved)}
