"""What the server makes of the mean of a round: the transform of the recipe's method, then its optimizer's step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from progfed.codec import Schema
from progfed.recipe import optimizers
from progfed.recipe.optimizers import State
from progfed.recipe.recipe import Recipe
from progfed.schedule import Phase
from progfed.tensors import Tensors, add, prefixed

_OWN = "method."
"""What slots of the method begin with, beside those of the optimizer."""


def of_method(state: State) -> State:
    """What the recipe's method keeps on the server, by its own slots."""
    return {slot.removeprefix(_OWN): tensors for slot, tensors in state.items() if slot.startswith(_OWN)}


def of_optimizer(state: State) -> State:
    """What the server optimizer keeps."""
    return {slot: tensors for slot, tensors in state.items() if not slot.startswith(_OWN)}


def crossing(params: Tensors, state: State) -> Tensors:
    """All that can travel to a client, by name: the model, and under `slot/name` what the method keeps."""
    return params | prefixed(of_method(state))


def grown(recipe: Recipe, before: State, params: Tensors) -> State:
    """The state after a growth: new names start anew, old ones are dropped, others keep theirs.

    A method's state stays even where the optimizer resets its own: clients keep their side of it, too.
    """
    own = of_method(before)
    kept = {
        slot: {name: own.get(slot, {}).get(name, value) for name, value in tensors.items()}
        for slot, tensors in recipe.method.init(params).items()
    }
    return _joined(kept, optimizers.grow(recipe.server, of_optimizer(before), params))


def step(
    params: Tensors,
    state: State,
    mean: Tensors,
    recipe: Recipe,
    *,
    buffers: frozenset[str],
    shares: Mapping[str, float],
) -> tuple[Tensors, State]:
    """The parameters and the state after a round; buffers such as BatchNorm statistics are averaged as they are.

    `shares` says for each name what share of the population has sent it.
    """
    learned = {name: value for name, value in mean.items() if name not in buffers}
    changed, own = recipe.method.update(learned, of_method(state), shares)
    moved, rest = recipe.server.update(changed, of_optimizer(state))
    averaged = {name: value for name, value in mean.items() if name in buffers}
    return add(params, {**moved, **averaged}), _joined(own, rest)


def shares(updates: Mapping[Phase, int], schemas: Mapping[Phase, Schema], clients: int) -> dict[str, float]:
    """For each name the share of the population whose updates had it; `updates` counts them by sub-model."""
    counts: Counter[str] = Counter()
    for phase, number in updates.items():
        counts.update(dict.fromkeys(schemas[phase], number))
    return {name: number / clients for name, number in counts.items()}


def _joined(own: State, rest: State) -> State:
    return {**{f"{_OWN}{slot}": tensors for slot, tensors in own.items()}, **rest}
