"""Weak clients that train all blocks, some at a time: what each turn trains, and what else a recipe has beside it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from progfed.blocks import Progressive
from progfed.client.learner import Learner
from progfed.codec import Float, schema_of
from progfed.costs import Costs
from progfed.costs.devices import deepest_for
from progfed.costs.memory import phase_memory
from progfed.costs.phase import phase_cost
from progfed.devices import Device
from progfed.engines.local import LocalEngine
from progfed.errors import UsageError
from progfed.losses import Distil
from progfed.recipe.privacy import Privacy
from progfed.recipe.recipe import Local, Recipe
from progfed.runs.plan import plan
from progfed.runs.train import run
from progfed.schedule import Phase, Schedule, end_to_end, every_head, freezing, in_turns, progressive, rescale, within
from progfed.server.loop import Round, federate
from progfed.tensors import Tensors, add, of_parts, part
from progfed.wire.engine import Task
from progfed.wire.message import DOWN, UP, Envelope, seal, unseal
from tiny import tiny_data, tiny_experiment, tiny_model, tiny_recipe

RUN = "0" * 16
WEAK = (1, 3, 1, 2, 3, 1)
ALL_HEADS = in_turns(every_head(3, stages=3))


def calm_model() -> Progressive:
    """The tiny model without dropout, so that training in pieces draws as training at once does."""
    blocks = (lambda: nn.Linear(6, 5), lambda: nn.Sequential(nn.ReLU(), nn.Linear(5, 5)), lambda: nn.Linear(5, 4))
    return replace(tiny_model(), blocks=blocks, name="calm")


def rounds(recipe: Recipe, *, deepest: tuple[int, ...] = WEAK, workers: int = 1) -> list[Round]:
    with LocalEngine(tiny_model(), replace(tiny_data(), deepest=deepest), recipe, workers=workers) as engine:
        return list(federate(tiny_model(), tiny_data().sizes, recipe, engine, deepest=deepest))


def sent(model: Progressive, recipe: Recipe, phase: Phase, held: Tensors) -> Tensors:
    """What client 0 sends back after one round of a phase."""
    names = {name: value for name, value in held.items() if part(name) in model.parts(phase)}
    message = seal(Envelope(DOWN, RUN, 1, phase.stage), names, Float(), 0)
    update, _ = Learner(model, tiny_data(), recipe, RUN)(Task(0, 1, phase, 0.2, message), {})
    learned = {name: value for name, value in names.items() if part(name) in model.trained(phase)}
    expected = Envelope(UP, RUN, 1, phase.stage, 0, tiny_data().sizes[0])
    return unseal(update.message, expected, schema_of(learned), Float())[1]


@pytest.mark.parametrize("deepest", [1, 2])
@pytest.mark.parametrize("schedule", [ALL_HEADS, in_turns(end_to_end(3, stages=3))], ids=["all heads", "one head"])
def test_a_round_in_turns_is_one_round_of_each_turn_after_the_other(schedule: Schedule, deepest: int) -> None:
    model, recipe = calm_model(), tiny_recipe(local=Local(epochs=2, batch=4, momentum=0.9, between=Distil()))
    phase = within(schedule[0], deepest)
    start = {name: value for p in model.parts(phase) for name, value in model.init(p, seed=3).items()}
    at_once, held = sent(model, recipe, phase, start), start
    assert len(phase.turns) == (3 if deepest == 1 else 2)
    for turn in phase.turns:
        held = held | add(
            {n: v for n, v in held.items() if part(n) in model.trained(turn)}, sent(model, recipe, turn, held)
        )
    assert {part(name) for name in at_once} == set(model.trained(phase)) == {part(name) for name in start}
    for name, change in at_once.items():
        torch.testing.assert_close(start[name] + change, held[name], rtol=1e-5, atol=1e-6)


def test_a_turn_stands_on_its_own_last_block_and_has_the_phases_heads_that_are_in_it() -> None:
    turns = within(in_turns(every_head(4, stages=4))[0], 2).turns
    assert [(turn.stage, turn.trains, turn.used_heads) for turn in turns] == [(2, (1, 2), (1, 2)), (4, (3, 4), (3, 4))]
    turns = within(in_turns(end_to_end(4, stages=4))[0], 3).turns
    assert [(turn.stage, turn.trains, turn.used_heads) for turn in turns] == [(3, (1, 2, 3), (3,)), (4, (4,), (4,))]
    frozen = within(in_turns(freezing(4, stages=4, again=1))[3], 1)
    assert [(turn.stage, turn.trains) for turn in frozen.turns] == [(3, (3,)), (4, (4,))]


def test_where_everybody_is_strong_nothing_changes() -> None:
    plain, turned = (
        rounds(tiny_recipe(schedule=one), deepest=(3,) * 6) for one in (every_head(3, stages=3), ALL_HEADS)
    )
    for one, other in zip(plain, turned, strict=True):
        assert one.loss == other.loss
        assert all(torch.equal(value, other.progress.params[name]) for name, value in one.progress.params.items())


def test_every_client_sends_every_block_and_each_is_averaged_over_all() -> None:
    done = rounds(tiny_recipe(schedule=in_turns(progressive(6, stages=3)), cohort=6), deepest=(1,) * 6)
    assert [{part(name) for name in r.progress.params} for r in (done[0], done[-1])] == [
        {"E1", "G1"},
        {"E1", "E2", "E3", "G1", "G2", "G3"},
    ]
    last, before = done[-1].progress.params, done[-2].progress.params
    assert all(not torch.equal(value, before[name]) for name, value in last.items())


def test_what_a_turn_costs_is_what_its_phases_cost_and_its_peak_is_below_that_of_all_blocks_at_once() -> None:
    model, local = tiny_model(), tiny_recipe().local
    phase = within(ALL_HEADS[0], 1)
    assert phase_cost(model, phase).flops == sum(phase_cost(model, turn).flops for turn in phase.turns)
    weights = [phase_memory(model, one, local).weights for one in (phase, every_head(1, stages=3)[0])]
    assert weights[0] == weights[1]
    # every turn would fit beside the weights that the others need
    above = [(found := phase_memory(model, turn, local)).peak - found.weights for turn in phase.turns]
    assert phase_memory(model, phase, local).peak == weights[0] + max(above)
    assert phase_memory(model, phase, local).peak < phase_memory(model, every_head(1, stages=3)[0], local).peak


def test_a_device_that_holds_one_block_at_a_time_trains_all_of_them() -> None:
    model, local = tiny_model(), tiny_recipe().local
    needed = phase_memory(model, within(ALL_HEADS[0], 1), local).peak
    assert deepest_for(model, [Device(memory=needed)], local, schedule=ALL_HEADS) == (1,)
    assert needed < Costs(model).memory(ALL_HEADS[0], local).peak


def test_heads_that_all_clients_train_can_be_private_and_others_cannot() -> None:
    privacy = Privacy(clip=1.0, noise=1.0, secret="9c1f83e07a4b5d6210c4e8f7b3a29d51")
    changes = {"weighting": "uniform", "privacy": privacy, "cohort": 6}
    assert len(rounds(tiny_recipe(schedule=ALL_HEADS, **changes))) == 3
    with pytest.raises(UsageError, match=r"in_turns\(every_head"):
        rounds(tiny_recipe(schedule=in_turns(end_to_end(3, stages=3)), **changes))


def test_a_head_that_all_stages_share_learns_in_every_turn() -> None:
    layer = partial(nn.Linear, 5, 5)
    model = replace(calm_model(), blocks=(partial(nn.Linear, 6, 5), layer, layer), keep_head=True)
    model = replace(model, heads=(partial(nn.Linear, 5, 3),) * 3)
    phase = within(in_turns(end_to_end(1, stages=3))[0], 1)
    start = {name: value for p in model.parts(phase) for name, value in model.init(p, seed=3).items()}
    at_once, held = sent(model, tiny_recipe(), phase, start), start
    for turn in phase.turns:
        held = held | add(of_parts(held, model.trained(turn)), sent(model, tiny_recipe(), turn, held))
    assert {part(name) for name in at_once} == {"E1", "E2", "E3", "G"}
    for name, change in at_once.items():
        torch.testing.assert_close(start[name] + change, held[name], rtol=1e-5, atol=1e-6)


def test_a_plan_knows_what_turns_cost(tmp_path: Path) -> None:
    data = replace(tiny_data(), deepest=WEAK)
    experiment = tiny_experiment(data=data, recipe=tiny_recipe(schedule=ALL_HEADS, cohort=6), clients=6, examples=45)
    planned, counted = plan(experiment)["total"], run(experiment, tmp_path)["cost"]
    assert [planned[cost] for cost in ("down_bytes", "up_bytes")] == [counted[c] for c in ("down_bytes", "up_bytes")]


def test_other_lengths_keep_the_turns() -> None:
    assert rescale(in_turns(progressive(6, stages=3)), 12) == in_turns(progressive(12, stages=3))
