"""Personal parts: an independent computation, never sent, never billed, and evaluated on the clients alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import plain_steps as plain
from progfed import LocalEngine, OnClients, Personal, Scaffold, federate
from progfed.costs import Costs
from progfed.errors import DataError, UsageError
from progfed.metrics import Metric
from progfed.runs.plan import plan
from progfed.runs.train import run
from progfed.server.loop import Round
from progfed.wire.engine import ClientState
from tiny import tiny_experiment, tiny_model, tiny_recipe


def trained(**changes: object) -> tuple[list[Round], dict[int, ClientState]]:
    recipe = plain.recipe(**{"method": Personal(), **changes})
    with LocalEngine(plain.model(), plain.data(), recipe) as engine:
        return list(federate(plain.model(), plain.data().sizes, recipe, engine)), engine.client_states


def test_blocks_are_learned_together_and_heads_alone_by_an_independent_computation() -> None:
    heads: list[plain.Named] = [{} for _ in range(plain.CLIENTS)]

    def one(number, cohort, made, stage, params, names):  # type: ignore[no-untyped-def]
        moved = []
        for client in cohort:
            own = {name: heads[client].get(name, value) for name, value in params.items() if name.startswith("G")}
            y = {**params, **own}
            for _ in range(plain.EPOCHS):
                slope = plain.gradient(made, stage, y, client, names)
                y = {name: value - plain.LR * slope[name] if name in names else value for name, value in y.items()}
            heads[client] |= {name: y[name] for name in own}
            moved.append({name: y[name] - params[name] for name in names if name.startswith("E")})
        return {name: sum(step[name] for step in moved) / len(cohort) for name in moved[0]}

    expected = plain.rounds(plain.recipe(), one)
    done, states = trained()
    assert all(name.startswith("E") for name in done[-1].progress.params)
    for name, value in done[-1].progress.params.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)
    for client, state in states.items():
        for name, value in state["private"].items():
            torch.testing.assert_close(value, heads[client][name], rtol=1e-4, atol=1e-5)


def test_no_message_has_a_head_and_no_bill_either() -> None:
    for phase in plain.recipe().schedule:
        cost, whole = (Costs(plain.model(), method).phase(phase) for method in (Personal(), plain.recipe().method))
        assert {name for name in whole.down if name.startswith("G")}
        assert not {name for name in (*cost.down, *cost.up) if name.startswith("G")}
        assert cost.trained_parameters < whole.trained_parameters
        assert cost.flops == whole.flops
    ours, theirs = (plan(tiny_experiment(recipe=tiny_recipe(method=m))) for m in (Personal(), "plain"))
    assert all(ours["total"][key] < theirs["total"][key] for key in ("down_bytes", "up_bytes", "paper_bytes"))


def test_methods_inside_a_personal_one_know_nothing_of_heads() -> None:
    done, states = trained(method=Personal(Scaffold()))
    assert all(name.startswith("E") for name in done[-1].progress.state["method.c"])
    assert all(name.startswith("E") for state in states.values() for name in state["c"])


def test_clients_measure_what_they_have_and_the_mean_and_the_deviation_are_recorded(tmp_path: Path) -> None:
    pairs = [(plain.data().client(i).inputs, plain.data().client(i).targets) for i in range(plain.CLIENTS)]  # type: ignore[union-attr]
    data = plain.data(own_tests=pairs)
    recipe = plain.recipe(method=OnClients(Personal()))
    with LocalEngine(plain.model(), data, recipe) as engine:
        *_, last = federate(plain.model(), data.sizes, recipe, engine)
    measured = recipe.method.scores({"scores": last.progress.state["method.scores"]})
    assert measured is not None
    assert set(measured) == {"accuracy", "accuracy deviation"}
    experiment = tiny_experiment(model=plain.model, data=data, recipe=recipe)
    summary = run(experiment, tmp_path / "run", workers=1)
    assert summary["metric"] == pytest.approx(measured["accuracy"])
    assert not (tmp_path / "run" / "exported.safetensors").exists()


def test_a_metric_of_clients_is_that_of_the_module_they_have_trained() -> None:
    seen: list[float] = []

    def right(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        found = (outputs.argmax(1) == targets).float()
        seen.append(100 * float(found.mean()))
        return found

    pairs = [(plain.data().client(i).inputs, plain.data().client(i).targets) for i in range(plain.CLIENTS)]  # type: ignore[union-attr]
    data = plain.data(own_tests=pairs)
    recipe = plain.recipe(method=OnClients(metrics={"right": Metric(right, unit="%", of="each")}))
    with LocalEngine(plain.model(), data, recipe) as engine:
        for done in federate(plain.model(), data.sizes, recipe, engine):
            scores = recipe.method.scores({"scores": done.progress.state["method.scores"]})
            assert scores is not None
            now = torch.tensor(seen[-plain.COHORT :])
            assert scores["right"] == pytest.approx(float(now.mean()), rel=1e-5)
            assert scores["right deviation"] == pytest.approx(float(now.std(correction=0)), rel=1e-2, abs=0.05)


def test_a_server_without_heads_says_that_it_cannot_evaluate(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"G3.\w+ never leaves the clients: let them do it, with method=OnClients"):
        run(tiny_experiment(recipe=tiny_recipe(method=Personal())), tmp_path, workers=1)


def test_clients_without_examples_to_test_on_are_named(tmp_path: Path) -> None:
    experiment = tiny_experiment(recipe=tiny_recipe(method=OnClients(Personal())))
    with pytest.raises(DataError, match=r"client \d has no test examples of its own"):
        run(experiment, tmp_path, workers=1)


def test_a_model_of_which_nothing_is_shared_is_refused() -> None:
    with pytest.raises(UsageError, match="learn nothing from each other"):
        Costs(tiny_model(), Personal(names="*")).phase(tiny_recipe().schedule[0])


@pytest.mark.parametrize("names", [(), ("G*", 3)])
def test_what_is_no_pattern_is_refused(names: object) -> None:
    with pytest.raises(UsageError, match="patterns of names"):
        Personal(names=names)  # type: ignore[arg-type]
