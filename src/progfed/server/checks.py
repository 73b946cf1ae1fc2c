"""What cannot work together is refused before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Sequence

from progfed.blocks import Progressive
from progfed.codec import LIMIT
from progfed.costs import Costs
from progfed.costs.phase import buffer_names
from progfed.errors import TrainingError, UsageError
from progfed.recipe import optimizers
from progfed.recipe.buffers import with_exact_buffers
from progfed.recipe.privacy import accounting
from progfed.recipe.recipe import Recipe
from progfed.schedule import Phase, within
from progfed.server.budget import check_budget
from progfed.tensors import Tensors, bounded, finite


def check(model: Progressive, recipe: Recipe, deepest: Sequence[int], *, clients: int) -> None:
    """Refuse what cannot work before anything is trained.

    `deepest` are the deepest stages that clients can train (empty: all of them); `clients` is their number, 0 where it
    is not known.
    """
    model.check(recipe.schedule)
    if deepest and min(deepest) < max(phase.stage for phase in recipe.schedule):
        if recipe.privacy and any(_differ(model, phase, deepest) for phase in recipe.schedule):
            raise UsageError(
                "privacy needs clients that all train the same names, or their number would tell who took part: leave "
                "out the clients that are too weak, or train them with the schedule in_turns(every_head(…))"
            )
        if recipe.delta:
            raise UsageError(
                "delta=True needs clients that all hold the same model, and some can train only a part of it: "
                "leave out delta, or `deepest`"
            )
    if recipe.privacy:
        accounting()
        recipe.privacy.hidden(recipe.seed)
    largest = max(recipe.schedule, key=lambda phase: phase.stage)
    if recipe.privacy and (buffers := buffer_names(model, largest)):
        raise UsageError(
            f"{model.name} has running statistics ({min(buffers)}, …), whose scale no clipping norm fits: "
            "train with privacy on a model with group normalisation"
        )
    if clients:
        recipe.check_population(clients)
    check_budget(with_exact_buffers(recipe, model), Costs(model, recipe.method), clients or math.inf)


def _differ(model: Progressive, phase: Phase, deepest: Sequence[int]) -> bool:
    """Whether clients of different depths train different parts of the model in a phase."""
    return len({frozenset(model.trained(within(phase, depth))) for depth in {*deepest, model.stages}}) > 1


def check_model(params: Tensors, state: optimizers.State, number: int) -> None:
    """Stop before a model that cannot be trained on, or a state of the optimizer, takes the place of a good one.

    Every update is finite, and bounded, yet their sum or its square may not be.
    """
    if not (bounded(params, LIMIT) and all(finite(tensors) for tensors in state.values())):
        raise TrainingError(
            f"round {number}: the step of the server leads to numbers that are not finite or exceed {LIMIT:g}: lower "
            "the learning rate, or use a median where clients may send anything; the round before is saved"
        )
