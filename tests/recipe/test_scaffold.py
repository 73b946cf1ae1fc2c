"""SCAFFOLD: the paper's rounds by an independent computation, its law, and its bytes."""

from __future__ import annotations

import pytest
import torch

import plain_steps as plain
from progfed import LocalEngine, Quantize, Scaffold, federate
from progfed.cli.settings import override
from progfed.codec import Float
from progfed.costs import Costs
from progfed.server.loop import Round
from progfed.wire.engine import ClientState
from progfed.wire.message import OVERHEAD
from tiny import tiny_experiment


def trained(**changes: object) -> tuple[list[Round], dict[int, ClientState]]:
    recipe = plain.recipe(**{"method": Scaffold(), **changes})
    with LocalEngine(plain.model(), plain.data(), recipe) as engine:
        return list(federate(plain.model(), plain.data().sizes, recipe, engine)), engine.client_states


def test_the_rounds_are_those_of_the_paper_by_an_independent_computation() -> None:
    common: plain.Named = {}
    own: list[plain.Named] = [{} for _ in range(plain.CLIENTS)]

    def one(number, cohort, made, stage, params, names):  # type: ignore[no-untyped-def]
        moved, drifted = [], []
        for client in cohort:
            y = dict(params)
            c = {name: common.get(name, torch.zeros_like(params[name])) for name in names}
            c_i = {name: own[client].get(name, torch.zeros_like(params[name])) for name in names}
            for _ in range(plain.EPOCHS):
                slope = plain.gradient(made, stage, y, client, names)
                for name in names:
                    y[name] = y[name] - plain.LR * (slope[name] - c_i[name] + c[name])
            after = {n: c_i[n] - c[n] + (params[n] - y[n]) / (plain.EPOCHS * plain.LR) for n in names}
            moved.append({name: y[name] - params[name] for name in names})
            drifted.append({name: after[name] - c_i[name] for name in names})
            own[client] |= after
        for name in names:
            before = common.get(name, torch.zeros_like(params[name]))
            common[name] = before + sum(one[name] for one in drifted) / plain.CLIENTS
        return {name: sum(one[name] for one in moved) / len(cohort) for name in names}

    expected = plain.rounds(plain.recipe(), one)
    done, states = trained()
    for name, value in done[-1].progress.params.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)
    for name, value in done[-1].progress.state["method.c"].items():
        torch.testing.assert_close(value, common[name], rtol=1e-4, atol=1e-5)
    for client, state in states.items():
        for name, value in state["c"].items():
            torch.testing.assert_close(value, own[client][name], rtol=1e-4, atol=1e-5)


def test_the_servers_variate_is_the_mean_of_all_clients_whoever_took_part() -> None:
    done, states = trained()
    for name, value in done[-1].progress.state["method.c"].items():
        of_all = [states[client]["c"].get(name, torch.zeros_like(value)) for client in states]
        torch.testing.assert_close(value, sum(of_all) / plain.CLIENTS, rtol=1e-4, atol=1e-6)


def test_variates_have_a_codec_of_their_own_and_every_byte_is_counted() -> None:
    floats, mixed = trained()[0], trained(method=Scaffold("LQ-8"))[0]
    cost = Costs(plain.model(), Scaffold()).phase(floats[-1].phase)
    model = {name: shape for name, shape in cost.up.items() if not name.startswith("c/")}
    variates = {name: shape for name, shape in cost.up.items() if name.startswith("c/")}
    assert len(variates) == len(model)
    whole = plain.COHORT * (OVERHEAD + Float().size(model) + Float().size(variates))
    assert floats[-1].cost.up_bytes == floats[-1].cost.down_bytes == whole
    assert mixed[-1].cost.up_bytes == plain.COHORT * (OVERHEAD + Float().size(model) + Quantize(8).size(variates))


def test_it_is_set_by_name_or_by_its_import_path() -> None:
    assert override(tiny_experiment(), "method=scaffold").recipe.method == Scaffold()
    chosen = override(tiny_experiment(), "method=progfed:Scaffold('LQ-8')")
    assert chosen.recipe.method == Scaffold(Quantize(8))


@pytest.mark.parametrize("up", ["LQ-8", "SP-25", "DQ-1.5", "EDEN-1"])
def test_every_codec_of_updates_leaves_what_travels_beside_them_exact(up: str) -> None:
    done, states = trained(up=up, feedback=up != "SP-25")
    for name, value in done[-1].progress.state["method.c"].items():
        of_all = [states[client]["c"].get(name, torch.zeros_like(value)) for client in states]
        torch.testing.assert_close(value, sum(of_all) / plain.CLIENTS, rtol=1e-4, atol=1e-6)
