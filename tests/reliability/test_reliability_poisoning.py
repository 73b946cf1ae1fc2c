"""Clients that poison: a fifth of them, on the embedded images, against the mean and against robust aggregates."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from progfed.aggregate import Aggregate, Mean, Median, Trimmed
from progfed.blocks import load
from progfed.chaos.clients import Poisoned, scaled
from progfed.data.embedded import embedded
from progfed.engines.local import LocalEngine
from progfed.errors import TrainingError
from progfed.evaluate import accuracy, evaluate
from progfed.federate import federate
from progfed.models.convnet import convnet_mnist
from progfed.rate import Constant
from progfed.recipe import Local, Recipe
from progfed.schedule import end_to_end

CLIENTS, ROUNDS = 5, 14
CHANCE = 10.0
ATTACKS = {"sign-flipped": -5.0, "scaled": 10.0}


@cache
def reached(aggregate: Aggregate, factor: float | None, rounds: int = ROUNDS) -> tuple[float, ...]:
    """Accuracy at half time and at the end, with one attacker among five clients; chance where training broke down."""
    model, all_data = convnet_mnist(10), embedded(clients=60, partition="iid")
    data = replace(all_data, sizes=all_data.sizes[:CLIENTS])
    recipe = Recipe(
        schedule=end_to_end(rounds, stages=3),
        cohort=CLIENTS,
        rate=Constant(0.1),
        local=Local(batch=20, momentum=0.5),
        aggregate=aggregate,
        weighting="uniform",
    )
    found: list[float] = []
    with LocalEngine(model, data, recipe) as engine:
        attacked = Poisoned(engine, {0}, scaled(factor), model, recipe) if factor else engine
        try:
            for done in federate(model, data.sizes, recipe, attacked):
                if done.number in (ROUNDS // 2, ROUNDS):
                    module = model.phase_module(done.phase)
                    load(module, done.progress.params)
                    found.append(evaluate(module, data.test_examples(), accuracy))
        except TrainingError:
            found.append(CHANCE)
    return tuple(found)


@pytest.mark.parametrize(
    ("attack", "robust"), [("sign-flipped", Median()), ("scaled", Trimmed(0.2))], ids=["sign-flipped", "scaled"]
)
def test_a_fifth_of_poisoners_breaks_the_mean_and_not_a_robust_aggregate(attack: str, robust: Aggregate) -> None:
    half, clean = reached(Mean(), None)
    assert clean > half > 40
    assert reached(Mean(), ATTACKS[attack], ROUNDS // 2)[0] < half - 25
    assert reached(robust, ATTACKS[attack])[1] > clean - 5
