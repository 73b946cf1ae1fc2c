"""The replies of a round: opened in a fixed order, all counted, whatever an aggregate takes of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest

from progfed.codec import codec
from progfed.engines.local import LocalEngine
from progfed.recipe.aggregate import Aggregate, Weighted
from progfed.recipe.recipe import Recipe
from progfed.server.loop import Round, federate
from progfed.tensors import Tensors, mean
from tiny import tiny_data, tiny_model, tiny_recipe


def first_two(updates: Weighted) -> Tensors:
    return mean(islice(updates, 2))


def first_two_passed_on(updates: Weighted) -> Tensors:
    """As `first_two`, by way of a generator that would close the replies when it is closed."""

    def passed_on() -> Iterator[tuple[float, Tensors]]:
        yield from updates

    return mean(islice(passed_on(), 2))


def nothing(updates: Weighted) -> Tensors:
    return {}


def counted(done: Round) -> tuple[object, ...]:
    cost = replace(done.cost, seconds=0.0)
    return done.number, done.clients, done.rejected, done.loss, done.surplus, cost


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("rule", [first_two, first_two_passed_on, nothing], ids=lambda rule: str(rule.__name__))
def test_an_aggregate_that_stops_early_falsifies_no_count(rule: Aggregate, workers: int) -> None:
    usual = tiny_recipe(cohort=4, over_selection=1.5, feedback=True, up=codec("LQ-8"))
    found = [first_round(recipe, workers) for recipe in (usual, replace(usual, aggregate=rule))]
    (whole, states), (stopped, others) = found
    assert counted(stopped) == counted(whole)
    assert (stopped.clients, stopped.surplus) == (4, 2)
    assert others == states == set(range(6))


def first_round(recipe: Recipe, workers: int) -> tuple[Round, set[int]]:
    """The first round, and the clients that have a state after it."""
    data = tiny_data()
    with LocalEngine(tiny_model(), data, recipe, workers=workers) as engine:
        done = next(iter(federate(tiny_model(), data.sizes, recipe, engine)))
        return done, set(engine.client_states)
