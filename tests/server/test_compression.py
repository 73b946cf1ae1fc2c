"""Codecs in the loop: what crosses is what is counted, client states survive, and feedback makes the difference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from progfed.blocks import Progressive
from progfed.client.learner import Learner
from progfed.codec import codec
from progfed.engines.local import LocalEngine
from progfed.population import FederatedData, from_clients
from progfed.recipe.rate import Constant
from progfed.recipe.recipe import Local, Recipe
from progfed.runs.directory import RunDirectory
from progfed.runs.plan import plan
from progfed.runs.train import run, train
from progfed.schedule import end_to_end, progressive
from progfed.server.loop import Round, federate
from progfed.wire.engine import ClientState, Task, Update
from progfed.wire.message import OVERHEAD
from tiny import tiny_data, tiny_experiment, tiny_model, tiny_recipe

CODECS = ["float", "fp16", "bf16", "LQ-8", "LQ-4", "LQ-2", "SP-25", "TOP-10", "LQ-8+SP-25", "LQ-8+SP-10"]


def rounds(model: Progressive, data: FederatedData, recipe: Recipe, *, workers: int = 1) -> list[Round]:
    with LocalEngine(model, data, recipe, workers=workers) as engine:
        return list(federate(model, data.sizes, recipe, engine))


class Counting:
    """An engine that weighs what really crosses."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self.client_states: dict[int, ClientState] = {}
        self.down = self.up = 0

    def __call__(self, tasks: Sequence[Task]) -> Iterable[Update]:
        for task in tasks:
            update, self.client_states[task.client] = self._learner(task, self.client_states.get(task.client, {}))
            self.down += len(task.message)
            self.up += len(update.message)
            yield update


@pytest.mark.parametrize("delta", [False, True], ids=["whole", "delta"])
@pytest.mark.parametrize("name", CODECS)
def test_counted_bytes_are_the_bytes_that_crossed(name: str, delta: bool) -> None:
    model, data = tiny_model(), tiny_data()
    recipe = tiny_recipe(up=codec(name), down=codec("LQ-8"), delta=delta)
    engine = Counting(Learner(model, data, recipe, "0" * 16))
    done = list(federate(model, data.sizes, recipe, engine))
    assert done[-1].progress.cost.down_bytes == engine.down
    assert done[-1].progress.cost.up_bytes == engine.up
    assert all(not r.rejected for r in done)


def test_with_full_participation_changes_are_all_that_is_ever_sent() -> None:
    model, data = tiny_model(), tiny_data()
    recipe = tiny_recipe(cohort=6, down=codec("LQ-8"), delta=True)
    for done in rounds(model, data, recipe):
        names = list(done.progress.params)
        parameters = sum(done.progress.params[name].numel() for name in names)
        assert done.cost.down_bytes <= 6 * (OVERHEAD + parameters + 8 * len(names) + 8)


def test_server_and_clients_hold_the_same_model_in_every_round() -> None:
    model, data = tiny_model(), tiny_data()
    recipe = tiny_recipe(cohort=6, down=codec("LQ-4"), delta=True)
    with LocalEngine(model, data, recipe) as engine:
        for done in federate(model, data.sizes, recipe, engine):
            for state in engine.client_states.values():
                assert state["held"].keys() == done.progress.held.keys()
                assert all(torch.equal(state["held"][name], value) for name, value in done.progress.held.items())


def test_without_loss_sending_changes_trains_the_same_model() -> None:
    model, data = tiny_model(), tiny_data()
    whole = rounds(model, data, tiny_recipe(cohort=6))[-1].progress.params
    changes = rounds(model, data, tiny_recipe(cohort=6, delta=True))[-1].progress.params
    assert all(torch.allclose(whole[name], changes[name], atol=1e-5) for name in whole)


def test_a_client_that_lost_its_state_asks_for_the_whole_model_and_trains_on() -> None:
    model, data = tiny_model(), tiny_data()
    recipe = tiny_recipe(cohort=6, down=codec("LQ-8"), delta=True, schedule=end_to_end(4, stages=3))
    with LocalEngine(model, data, recipe) as engine:
        done = []
        for r in federate(model, data.sizes, recipe, engine):
            done.append(r)
            if r.number == 2:
                engine.client_states.pop(3)
    parameters = sum(value.numel() for value in done[-1].progress.params.values())
    assert done[2].clients == 6
    assert done[2].cost.down_bytes - done[1].cost.down_bytes == OVERHEAD + 4 * parameters
    assert done[2].cost.up_bytes - done[1].cost.up_bytes == OVERHEAD
    assert done[3].cost.down_bytes == done[1].cost.down_bytes  # and holds the model again


@pytest.mark.parametrize("settings", [{"feedback": True}, {"delta": True}, {"feedback": True, "delta": True}], ids=str)
def test_client_states_do_not_depend_on_workers(settings: dict[str, bool]) -> None:
    recipe = tiny_recipe(cohort=6, up=codec("LQ-2"), down=codec("LQ-4"), **settings)
    one, two = (rounds(tiny_model(), tiny_data(), recipe, workers=workers)[-1].progress for workers in (1, 2))
    assert all(torch.equal(one.params[name], two.params[name]) for name in one.params)
    assert replace(one.cost, seconds=0) == replace(two.cost, seconds=0)


@pytest.mark.parametrize(("name", "cohort"), [("LQ-8", 3), ("LQ-2", 6), ("TOP-10", 3), ("LQ-8+SP-25", 6)])
@pytest.mark.parametrize("feedback", [False, True], ids=["plain", "feedback"])
def test_a_compressed_run_continues_to_the_same_bits(tmp_path: Path, name: str, feedback: bool, cohort: int) -> None:
    recipe = tiny_recipe(
        cohort=cohort,
        up=codec(name),
        down=codec("LQ-8"),
        feedback=feedback,
        delta=feedback,
        schedule=progressive(6, stages=3, warmup=1),
    )
    experiment = tiny_experiment(recipe=recipe)
    whole = run(experiment, tmp_path / "whole")
    for stop in (2, 3, 5):
        folder = tmp_path / str(stop)
        for record in train(experiment, folder, data=tmp_path):
            if record["round"] == stop:
                break
        again = run(experiment, folder)
        assert again["model_sha256"] == whole["model_sha256"]
        for key in ("down_bytes", "up_bytes", "flops"):
            assert again["cost"][key] == whole["cost"][key]
        assert len(RunDirectory(folder).records()) == whole["rounds"]


def test_full_participation_changes_are_planned_exactly() -> None:
    experiment = tiny_experiment(recipe=tiny_recipe(cohort=6, down=codec("LQ-8"), delta=True))
    planned = plan(experiment)["total"]
    counted = rounds(tiny_model(), tiny_data(), experiment.recipe)[-1].progress.cost
    assert (planned["down_bytes"], planned["up_bytes"]) == (counted.down_bytes, counted.up_bytes)


# --- error feedback -------------------------------------------------------------------------------------------------


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return ((outputs - targets) ** 2).sum(1).mean() / 2


def least_squares() -> tuple[Progressive, FederatedData, torch.Tensor]:
    """Four clients that agree on the optimum and differ in curvature: without noise, gradient descent gets there."""
    optimum = torch.randn(12, generator=torch.Generator().manual_seed(1))
    model = Progressive(
        blocks=(lambda: nn.Linear(1, 12, bias=False),),
        heads=(nn.Identity,),
        example=torch.zeros(1, 1),
        name="least squares",
    )
    clients = [(torch.full((1, 1), scale), scale * optimum[None]) for scale in (0.5, 0.8, 1.0, 1.5)]
    return model, from_clients(clients, test=clients[0]), optimum


@pytest.mark.parametrize(("remember", "converges"), [(True, True), (False, False)])
def test_two_bits_both_ways_converge_with_feedback_and_not_without(remember: bool, converges: bool) -> None:
    model, data, optimum = least_squares()
    recipe = Recipe(
        schedule=end_to_end(150, stages=1),
        cohort=4,
        rate=Constant(0.2),
        local=Local(loss=squared),
        up=codec("LQ-2"),
        down=codec("LQ-2"),
        feedback=remember,
        delta=remember,
    )
    done = rounds(model, data, recipe)
    errors = [float((r.progress.params["E1.weight"][:, 0] - optimum).norm() / optimum.norm()) for r in done[-20:]]
    if converges:
        assert max(errors) < 1e-4
    else:
        assert min(errors) > 0.02
