"""A run with a budget of bytes: it ends within it, on every engine, and after every interruption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from progfed.blocks import Progressive
from progfed.codec import Fitted, Float
from progfed.costs import Costs
from progfed.engines.local import LocalEngine
from progfed.errors import UsageError
from progfed.population import FederatedData
from progfed.recipe.growth import Plateau
from progfed.recipe.recipe import Recipe
from progfed.runs.identity import describe
from progfed.runs.plan import plan
from progfed.runs.train import run, train
from progfed.schedule import Schedule, end_to_end, progressive
from progfed.server.budget import allowance
from progfed.server.loop import Round, federate
from progfed.wire.engine import Task, Update
from tiny import tiny_data, tiny_experiment, tiny_recipe


def net() -> Progressive:
    """Three layers, of which the last has most of the 41,000 numbers: envelopes weigh little."""
    return Progressive(
        blocks=(
            lambda: nn.Sequential(nn.Linear(6, 40), nn.ReLU()),
            lambda: nn.Sequential(nn.Linear(40, 80), nn.ReLU()),
            lambda: nn.Sequential(nn.Linear(80, 400), nn.ReLU()),
        ),
        heads=(lambda: nn.Linear(40, 3), lambda: nn.Linear(80, 3), lambda: nn.Linear(400, 3)),
        example=torch.zeros(1, 6),
        name="budgeted",
    )


def rounds(recipe: Recipe, data: FederatedData | None = None, *, workers: int = 1) -> list[Round]:
    data = data or tiny_data()
    with LocalEngine(net(), data, recipe, workers=workers) as engine:
        return list(federate(net(), data.sizes, recipe, engine, deepest=data.deepest))


def sent(done: Round) -> int:
    return done.progress.cost.down_bytes + done.progress.cost.up_bytes


@pytest.mark.parametrize("share", [0.015, 0.03, 0.1])
@pytest.mark.parametrize("schedule", [progressive(9, stages=3, warmup=1), end_to_end(6, stages=3)])
def test_a_run_ends_within_its_budget_and_uses_it(schedule: Schedule, share: float) -> None:
    recipe = tiny_recipe(schedule=schedule, bytes=share)
    *_, last = rounds(recipe)
    budget = allowance(recipe, Costs(net()), 6)
    floats = sent(rounds(tiny_recipe(schedule=end_to_end(1, stages=3)))[-1])
    assert budget == int(share * floats * (9 if len(recipe.schedule) > 1 else 6))
    assert 0.93 * budget < sent(last) <= budget
    assert last.rejected == {}


def test_neither_workers_nor_weak_clients_nor_reserves_break_it() -> None:
    data = replace(tiny_data(), deepest=(1, 2, 3, 1, 2, 3))
    recipe = tiny_recipe(cohort=4, over_selection=1.5, schedule=progressive(6, stages=3), bytes=0.03)
    one, two = (rounds(recipe, data, workers=workers)[-1].progress for workers in (1, 2))
    assert all(torch.equal(one.params[name], two.params[name]) for name in one.params)
    assert replace(one.cost, seconds=0) == replace(two.cost, seconds=0)
    assert one.cost.down_bytes + one.cost.up_bytes <= allowance(recipe, Costs(net()), 6)


def test_stages_that_end_early_leave_fewer_bits_for_each_round_to_come() -> None:
    waiting = tiny_recipe(schedule=progressive(12, stages=3, lengths=(4, 4, 4)), bytes=0.03)
    early = replace(waiting, growth=Plateau(least=1, window=1, tolerance=0.99))
    *_, last = rounds(early)
    assert last.number == 12
    assert last.progress.watch.lengths[0] < 4
    assert sent(last) <= allowance(early, Costs(net()), 6)


def test_a_run_that_was_stopped_goes_on_to_the_same_bits_and_bytes(tmp_path: Path) -> None:
    recipe = tiny_recipe(schedule=progressive(6, stages=3), bytes=0.04)
    experiment = tiny_experiment(model=net, recipe=recipe)
    whole = run(experiment, tmp_path / "whole")
    for record in train(experiment, tmp_path / "stopped", data=tmp_path):
        if record["round"] == 3:
            break
    again = run(experiment, tmp_path / "stopped")
    assert again["model_sha256"] == whole["model_sha256"]
    assert {**again["cost"], "seconds": 0} == {**whole["cost"], "seconds": 0}


def test_what_clients_do_not_send_is_left_for_the_rounds_to_come() -> None:
    recipe, data, model = tiny_recipe(schedule=end_to_end(4, stages=3), cohort=6, bytes=0.03), tiny_data(), net()
    told = []
    with LocalEngine(model, data, recipe) as inner:

        class Failing:
            """Answers for one client of the first round, and for all of those that follow."""

            client_states = inner.client_states

            def __call__(self, tasks: Sequence[Task]) -> list[Update]:
                told.append(tasks[0].bits)
                return [update for update in inner(tasks) if tasks[0].round > 1 or update.client == 0]

        *_, last = federate(model, data.sizes, recipe, Failing())
    assert told[1] > told[0]
    assert 0.93 * allowance(recipe, Costs(model), 6) < sent(last) <= allowance(recipe, Costs(model), 6)


def test_buffers_are_sent_as_floats_and_are_within_the_budget() -> None:
    normed = replace(net(), blocks=(*net().blocks[:2], lambda: nn.Sequential(nn.Linear(80, 400), nn.BatchNorm1d(400))))
    recipe, data = tiny_recipe(schedule=progressive(5, stages=3), bytes=0.05), tiny_data()
    with LocalEngine(normed, data, recipe) as engine:
        *_, last = federate(normed, data.sizes, recipe, engine)
    assert last.rejected == {}
    assert 0.85 * allowance(recipe, Costs(normed), 6) < sent(last) <= allowance(recipe, Costs(normed), 6)
    assert bool((last.progress.params["E3.1.running_var"] > 0).all())


def test_plan_shows_the_budget_as_a_bound() -> None:
    floats = plan(tiny_experiment(model=net, recipe=tiny_recipe(schedule=end_to_end(9, stages=3))))["total"]
    planned = plan(tiny_experiment(model=net, recipe=tiny_recipe(bytes=0.05)))
    share = (planned["total"]["down_bytes"] + planned["total"]["up_bytes"]) / (
        floats["down_bytes"] + floats["up_bytes"]
    )
    assert 0.049 < share <= 0.05
    assert not planned["exact"]
    assert sum(stage["down_bytes"] for stage in planned["stages"]) == planned["total"]["down_bytes"]


def test_a_budget_that_no_message_can_keep_is_refused_with_the_least_that_can_be_kept() -> None:
    recipe = tiny_recipe(schedule=end_to_end(6, stages=3), bytes=0.004)
    with pytest.raises(UsageError, match=r"bytes=0\.004 is too little: [\d.]+% is about the least"):
        rounds(recipe)
    with pytest.raises(UsageError, match="too little"):
        plan(tiny_experiment(model=net, recipe=recipe))


def test_a_budget_implies_its_codecs_and_the_base_and_goes_with_no_other() -> None:
    recipe = tiny_recipe(bytes="2%")
    assert (recipe.bytes, recipe.base, recipe.up, recipe.down) == (0.02, "start", Fitted(8), Fitted(8))
    assert replace(recipe, cohort=2).bytes == 0.02
    assert tiny_recipe(bytes=0.02, down="DQ-2bit").down == Fitted(2)
    with pytest.raises(UsageError, match="the server chooses the codecs: leave out up=LQ-8"):
        tiny_recipe(bytes=0.02, up="LQ-8")
    for other in ("delta", "feedback"):
        with pytest.raises(UsageError, match=f"bytes cannot be promised with {other}=True"):
            tiny_recipe(bytes=0.02, **{other: True})
    for wrong in (0, 1, -0.1, "2 bytes", float("nan")):
        with pytest.raises(UsageError, match="bytes"):
            tiny_recipe(bytes=wrong)


def test_no_round_is_finer_than_the_codec_that_was_asked_for() -> None:
    recipe = tiny_recipe(schedule=end_to_end(3, stages=3), bytes=0.2, up="DQ-1bit", down="DQ-1bit")
    last = rounds(recipe)[-1].progress.cost
    numbers = sum(value.numel() for value in rounds(recipe)[-1].progress.params.values())
    assert last.up_bytes <= 3 * 3 * (numbers / 8 + 136)


def test_recipes_without_a_budget_are_the_experiments_that_they_were() -> None:
    assert "bytes" not in describe(tiny_recipe())
    assert describe(tiny_recipe(bytes=0.02))["bytes"] == 0.02
    assert tiny_recipe().bits is None
    assert isinstance(tiny_recipe().with_bits(None).up, Float)
    assert tiny_recipe(bytes=0.02).with_bits((1, 0.5)).bits == (1, 0.5)
