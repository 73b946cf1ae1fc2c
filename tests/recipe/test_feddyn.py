"""FedDyn: the paper's rounds by an independent computation."""

from __future__ import annotations

import pytest
import torch

import plain_steps as plain
from progfed import FedDyn, LocalEngine, federate
from progfed.cli.settings import override
from progfed.errors import UsageError
from tiny import tiny_experiment

ALPHA = 0.3


def test_the_rounds_are_those_of_the_paper_by_an_independent_computation() -> None:
    slopes: list[plain.Named] = [{} for _ in range(plain.CLIENTS)]
    kept: plain.Named = {}

    def one(number, cohort, made, stage, params, names):  # type: ignore[no-untyped-def]
        models = []
        for client in cohort:
            w = dict(params)
            g = {name: slopes[client].get(name, torch.zeros_like(params[name])) for name in names}
            for _ in range(plain.EPOCHS):
                slope = plain.gradient(made, stage, w, client, names)
                for name in names:
                    w[name] = w[name] - plain.LR * (slope[name] - g[name] + ALPHA * (w[name] - params[name]))
            slopes[client] |= {name: g[name] - ALPHA * (w[name] - params[name]) for name in names}
            models.append(w)
        step = {}
        for name in names:
            before = kept.get(name, torch.zeros_like(params[name]))
            kept[name] = before - ALPHA / plain.CLIENTS * sum(w[name] - params[name] for w in models)
            step[name] = sum(w[name] for w in models) / len(cohort) - kept[name] / ALPHA - params[name]
        return step

    recipe = plain.recipe(method=FedDyn(ALPHA))
    expected = plain.rounds(recipe, one)
    with LocalEngine(plain.model(), plain.data(), recipe) as engine:
        done = list(federate(plain.model(), plain.data().sizes, recipe, engine))
    for name, value in done[-1].progress.params.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-4)
    for client, state in engine.client_states.items():
        for name, value in state["g"].items():
            torch.testing.assert_close(value, slopes[client][name], rtol=1e-3, atol=1e-4)


def test_nothing_travels_but_model_and_update() -> None:
    spent = []
    for method in (FedDyn(), None):
        recipe = plain.recipe(**({"method": method} if method else {}))
        with LocalEngine(plain.model(), plain.data(), recipe) as engine:
            spent.append(list(federate(plain.model(), plain.data().sizes, recipe, engine))[-1].progress.cost)
    assert (spent[0].up_bytes, spent[0].down_bytes) == (spent[1].up_bytes, spent[1].down_bytes)


def test_its_alpha_is_set_on_the_command_line_and_checked() -> None:
    chosen = override(override(tiny_experiment(), "method=feddyn"), "method.alpha=0.5")
    assert chosen.recipe.method == FedDyn(0.5)
    with pytest.raises(UsageError, match="alpha of FedDyn"):
        FedDyn(0.0)
