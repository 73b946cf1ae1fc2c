"""Clients that poison: a fifth of them, on the embedded images, against the mean and against robust aggregates.

`python tests/reliability/test_poisoning.py` prints the table of docs/reliability.md.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from reliability.clients import Poisoned, scaled
from torch import nn

from progfed.blocks import Progressive, load
from progfed.data.embedded import embedded
from progfed.engines.local import LocalEngine
from progfed.errors import TrainingError
from progfed.evaluate import accuracy, evaluate
from progfed.recipe.aggregate import Aggregate, Mean, Median, Trimmed
from progfed.recipe.rate import Constant
from progfed.recipe.recipe import Local, Recipe
from progfed.schedule import end_to_end
from progfed.server.loop import federate

CLIENTS, ATTACKERS, ROUNDS = 10, 2, 14
CHANCE = 10.0
ATTACKS = {"nobody attacks": 0.0, "sign-flipped": -5.0, "scaled": 30.0, "sign-flipped, not scaled": -1.0}
RULES: dict[str, Aggregate] = {"mean": Mean(), "median": Median(), "trimmed mean": Trimmed(0.2)}


def perceptron() -> Progressive:
    """One hidden layer of 64: what is tested is the aggregate, and this model learns the images in a second."""
    return Progressive(
        blocks=(lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU()),),
        heads=(lambda: nn.Linear(64, 10),),
        example=torch.zeros(1, 1, 28, 28),
        name="perceptron",
    )


@cache
def reached(rule: str, attack: str) -> float:
    """Accuracy in percent after two of ten clients have attacked in every round; chance where training broke down."""
    model, everybody = perceptron(), embedded(clients=60, partition="iid")
    data = replace(everybody, sizes=everybody.sizes[:CLIENTS])
    recipe = Recipe(
        schedule=end_to_end(ROUNDS, stages=1),
        cohort=CLIENTS,
        rate=Constant(0.1),
        local=Local(batch=20, momentum=0.5),
        aggregate=RULES[rule],
        weighting="uniform",
    )
    with LocalEngine(model, data, recipe) as engine:
        attackers = range(ATTACKERS) if ATTACKS[attack] else ()
        attacked = Poisoned(engine, set(attackers), scaled(ATTACKS[attack]), model, recipe)
        try:
            done = list(federate(model, data.sizes, recipe, attacked))[-1]
        except TrainingError:
            return CHANCE
    module = model.phase_module(done.phase)
    load(module, done.progress.params)
    return evaluate(module, data.test_examples(), accuracy)


@pytest.mark.parametrize("attack", ["sign-flipped", "scaled"])
def test_a_fifth_of_poisoners_breaks_the_mean(attack: str) -> None:
    assert reached("mean", "nobody attacks") > 70
    assert reached("mean", attack) < 40


@pytest.mark.parametrize("attack", ["sign-flipped", "scaled"])
@pytest.mark.parametrize("rule", ["median", "trimmed mean"])
def test_a_fifth_of_poisoners_costs_a_robust_aggregate_less_than_five_points(rule: str, attack: str) -> None:
    assert reached(rule, attack) > reached("mean", "nobody attacks") - 5


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("|", *RULES, sep=" | ")
    for chosen in ATTACKS:
        print(f"| {chosen}", *(f"{reached(rule, chosen):.1f}" for rule in RULES), sep=" | ")
