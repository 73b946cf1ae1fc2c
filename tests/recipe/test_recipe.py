"""Recipes: short forms that everybody writes, and values that cannot work."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from torch import nn

import progfed
from progfed.codec import Chain, Quantize, Sparsify
from progfed.errors import UsageError
from progfed.recipe.aggregate import Median
from progfed.recipe.growth import Plateau
from progfed.recipe.optimizers import fedadam, fedavg, fedavgm
from progfed.recipe.rate import Constant, Cosine, MultiStep, PerStage, Restart
from progfed.recipe.recipe import Local
from progfed.runs.identity import identity
from progfed.runs.plan import plan
from progfed.schedule import Phase
from tiny import tiny_data, tiny_experiment, tiny_recipe

SHORT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"rate": 0.1}, {"rate": Cosine(0.1)}),
    ({"rate": Restart(0.1)}, {"rate": Restart(Cosine(0.1))}),  # type: ignore[arg-type]
    ({"rate": PerStage((0.4, 0.1))}, {"rate": PerStage((Cosine(0.4), Cosine(0.1)))}),  # type: ignore[arg-type]
    ({"up": "LQ-8", "down": "lq-4+sp-25"}, {"up": Quantize(8), "down": Chain((Quantize(4), Sparsify(25)))}),
    ({"server": "fedadam"}, {"server": fedadam()}),
    ({"aggregate": "median"}, {"aggregate": Median()}),
    ({"growth": "plateau"}, {"growth": Plateau()}),
    ({"growth": "fixed"}, {}),
]


@pytest.mark.parametrize(("short", "whole"), SHORT, ids=lambda value: str(list(value)))
def test_a_short_form_is_the_value_it_stands_for(short: dict[str, Any], whole: dict[str, Any]) -> None:
    one, other = tiny_recipe(**short), tiny_recipe(**whole)
    assert one == other
    assert identity(tiny_experiment(recipe=one)) == identity(tiny_experiment(recipe=other))
    assert replace(one, seed=5) == replace(other, seed=5)


UNSOUND: list[tuple[Any, str]] = [
    (lambda: tiny_recipe(rate="fast"), "a rate is a number"),
    (lambda: tiny_recipe(rate=Cosine), "a rate is a number"),
    (lambda: tiny_recipe(rate=None), "a rate is a number"),
    (lambda: tiny_recipe(rate=-1), "finite number of 0 or more, not -1"),
    (lambda: Constant(math.nan), "finite number of 0 or more, not nan"),
    (lambda: Cosine(0.1, floor=-0.1), "finite number of 0 or more, not -0.1"),
    (lambda: MultiStep(math.inf), "finite number of 0 or more, not inf"),
    (lambda: PerStage(()), "at least one stage"),
    (lambda: tiny_recipe(up="LQ-3"), "LQ-3"),
    (lambda: tiny_recipe(down=8), "such as 'LQ-8', not 8"),
    (lambda: tiny_recipe(server="sgd"), "server takes one of fedavg, .*not 'sgd'"),
    (lambda: tiny_recipe(server=fedadam), "server takes one of fedavg, .*not <function fedadam"),
    (lambda: tiny_recipe(aggregate="krum"), "aggregate takes one of mean, .*not 'krum'"),
    (lambda: tiny_recipe(schedule=100), r"made by progressive\(\) or end_to_end\(\), not 100"),
    (lambda: tiny_recipe(cohort=0), "a cohort is a whole number of 1 or more clients, not 0"),
    (lambda: tiny_recipe(cohort=2.5), "a cohort is a whole number"),
    (lambda: tiny_recipe(over_selection=math.inf), "over_selection"),
    (lambda: Local(momentum=2), "momentum is 0 to below 1, not 2"),
    (lambda: Local(momentum=math.nan), "momentum"),
    (lambda: Local(weight_decay=math.inf), "weight_decay is a finite number of 0 or more, not inf"),
    (lambda: Local(prox=-1), "prox is a finite number of 0 or more, not -1"),
    (lambda: Local(epochs=1.5), "at least 1 epoch"),  # type: ignore[arg-type]
    (lambda: Local(momentum="0.9"), "momentum is a number, not '0.9'"),  # type: ignore[arg-type]
    (lambda: Local(clip="1"), "clip is a number, a StepLimit or None, not '1'"),  # type: ignore[arg-type]
    (lambda: Local(loss=nn.CrossEntropyLoss), r"make it first, CrossEntropyLoss\(\)"),  # type: ignore[arg-type]
    (lambda: Local(loss="mse"), "loss is a function of outputs and targets, not 'mse'"),  # type: ignore[arg-type]
    (lambda: tiny_recipe(local={"epochs": 2}), r"local is a progfed.Local\(…\)"),
    (lambda: tiny_recipe(seed="0"), "a seed is a whole number, not '0'"),
    (lambda: tiny_recipe(schedule=(Phase(1, 0),)), "1 or more rounds, not 0"),
    (lambda: tiny_recipe(schedule=(Phase(1, 2.5),)), "a whole number"),  # type: ignore[arg-type]
    (lambda: tiny_recipe(schedule=(Phase(1, 2, trains=(2,)),)), r"trains blocks 1 to 1, not \(2,\)"),
    (lambda: Cosine("0.1"), "finite number of 0 or more, not '0.1'"),  # type: ignore[arg-type]
    (lambda: MultiStep(0.1, 5), r"such as \(0.5, 0.75\), not 5"),  # type: ignore[arg-type]
    (lambda: fedavg(-1.0), "a server's learning rate"),
    (lambda: fedavgm(momentum=1.0), "a server's momentum"),
    (lambda: fedadam(beta2=1.0), "beta1 and beta2"),
    (lambda: tiny_experiment(evaluate_every=0), "evaluated every 1 or more rounds, not every 0"),
]


@pytest.mark.parametrize(("make", "message"), UNSOUND, ids=[message for _, message in UNSOUND])
def test_a_value_that_cannot_work_is_one_clear_sentence(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize("population", [{"clients": 50}, {"data": tiny_data(clients=50)}])
def test_a_cohort_larger_than_the_population_is_refused_before_anything_is_planned(population: Any) -> None:
    experiment = tiny_experiment(data=partial(tiny_data), recipe=tiny_recipe(cohort=1000))
    with pytest.raises(UsageError, match="a cohort of 1000 clients cannot be drawn from 50: use 1 to 50"):
        plan(replace(experiment, **population))


def test_rates_of_stages_are_public() -> None:
    assert progfed.PerStage is PerStage
