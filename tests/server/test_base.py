"""Whole models that are sent as what training has changed since the start, to clients that keep nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from progfed import rng
from progfed.blocks import Progressive, hold
from progfed.client.learner import Learner
from progfed.codec import codec, schema_of
from progfed.engines.local import LocalEngine
from progfed.errors import TrainingError, UsageError
from progfed.population import FederatedData
from progfed.recipe.recipe import Recipe
from progfed.runs.identity import describe
from progfed.runs.train import run, train
from progfed.schedule import Phase, end_to_end, progressive
from progfed.server.broadcast import broadcast
from progfed.server.loop import Round, federate
from progfed.tensors import Tensors, add, sub
from progfed.wire.engine import Task
from progfed.wire.message import DOWN, OVERHEAD, Envelope, model_digest, unseal
from tiny import tiny_data, tiny_experiment, tiny_model, tiny_recipe

LOSSY = ["fp16", "LQ-8", "LQ-2", "SP-25", "TOP-10", "ROT+LQ-4", "DQ-1.5", "EDEN-1"]
RUN = "0" * 16


def rounds(model: Progressive, data: FederatedData, recipe: Recipe, *, workers: int = 1) -> list[Round]:
    with LocalEngine(model, data, recipe, workers=workers) as engine:
        return list(federate(model, data.sizes, recipe, engine, deepest=data.deepest))


def same(one: Tensors, two: Tensors) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("name", LOSSY)
def test_what_arrives_is_the_start_and_the_decoded_change_since_then(name: str) -> None:
    model, recipe, phase = tiny_model(), tiny_recipe(down=codec(name), base="start"), Phase(2, 1)
    start = hold({}, model, phase, seed=recipe.seed)
    params = {key: value + torch.randn(value.shape, generator=rng.generator(3, key)) for key, value in start.items()}
    envelope = Envelope(DOWN, RUN, 1, 2)
    message = broadcast(params, {}, model, recipe, envelope, {phase: schema_of(params)}).messages[phase]
    schema = {key: tuple(value.shape) for key, value in sorted(params.items())}
    _, change = unseal(message, replace(envelope, base=model_digest(start)), schema, recipe.down)
    encoded = recipe.down.encode(sub(params, start), rng.number(recipe.seed, "down", 1))
    assert same(change, recipe.down.decode(memoryview(encoded), schema))
    learner = Learner(model, tiny_data(), recipe, RUN)
    learner(Task(0, 1, phase, 0.1, message), {})
    assert same(learner._received, add(start, change))


@pytest.mark.parametrize("name", LOSSY)
def test_nothing_is_lost_before_the_first_round(name: str) -> None:
    """Of the first round clients get the initial model to the bit, since its change is zero."""
    model, recipe, phase = tiny_model(), tiny_recipe(down=codec(name), base="start"), Phase(1, 1)
    start = hold({}, model, phase, seed=recipe.seed)
    learner = Learner(model, tiny_data(), recipe, RUN)
    message = broadcast(start, {}, model, recipe, Envelope(DOWN, RUN, 1, 1), {phase: schema_of(start)}).messages[phase]
    learner(Task(0, 1, phase, 0.1, message), {})
    assert same(learner._received, start)


@pytest.mark.parametrize("name", ["LQ-8", "DQ-1.5", "EDEN-1"])
def test_neither_workers_nor_weak_clients_change_what_is_decoded(name: str) -> None:
    data = replace(tiny_data(), deepest=(1, 2, 3, 1, 2, 3))
    recipe = tiny_recipe(cohort=6, up=codec(name), down=codec(name), base="start")
    one, two = (rounds(tiny_model(), data, recipe, workers=workers)[-1].progress for workers in (1, 2))
    assert same(one.params, two.params)
    assert replace(one.cost, seconds=0) == replace(two.cost, seconds=0)


@pytest.mark.parametrize("delta", [False, True], ids=["whole", "delta"])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path: Path, delta: bool) -> None:
    recipe = tiny_recipe(
        up=codec("DQ-2"),
        down=codec("DQ-1"),
        base="start",
        delta=delta,
        schedule=progressive(6, stages=3, warmup=1),
    )
    experiment = tiny_experiment(recipe=recipe)
    whole = run(experiment, tmp_path / "whole")
    for stop in (1, 4):
        for record in train(experiment, tmp_path / str(stop), data=tmp_path):
            if record["round"] == stop:
                break
        again = run(experiment, tmp_path / str(stop))
        assert again["model_sha256"] == whole["model_sha256"]
        assert replace_seconds(again["cost"]) == replace_seconds(whole["cost"])


def replace_seconds(cost: dict[str, float]) -> dict[str, float]:
    return {**cost, "seconds": 0.0}


def test_the_change_since_the_start_is_sent_with_less_noise_than_the_model() -> None:
    """The noise of DQ is a share of the numbers' size, and training changes initial weights by less than they are."""
    model, phase = tiny_model(), Phase(3, 1)
    start = hold({}, model, phase, seed=tiny_recipe().seed)
    trained = rounds(model, tiny_data(), tiny_recipe(schedule=end_to_end(2, stages=3)))[-1].progress.params
    assert norm(sub(trained, start)) < 0.5 * norm(trained)
    errors = {}
    for base in ("zero", "start"):
        recipe = tiny_recipe(down=codec("DQ-1.5"), base=base)
        learner = Learner(model, tiny_data(), recipe, RUN)
        envelope, schemas = Envelope(DOWN, RUN, 1, 3), {phase: schema_of(trained)}
        message = broadcast(trained, {}, model, recipe, envelope, schemas).messages[phase]
        learner(Task(0, 1, phase, 0.1, message), {})
        errors[base] = norm(sub(learner._received, trained))
    assert errors["start"] < 0.5 * errors["zero"]


def norm(tensors: Tensors) -> float:
    return float(sum((value**2).sum() for value in tensors.values()) ** 0.5)


def test_a_client_that_starts_from_other_weights_refuses_the_model() -> None:
    recipe = tiny_recipe(down=codec("LQ-8"), base="start")
    model, phase = tiny_model(), Phase(1, 1)
    start = hold({}, model, phase, seed=recipe.seed)
    message = broadcast(start, {}, model, recipe, Envelope(DOWN, RUN, 1, 1), {phase: schema_of(start)}).messages[phase]
    other = Learner(model, tiny_data(), replace(recipe, seed=recipe.seed + 1), RUN)
    with pytest.raises(TrainingError, match=r"cannot be used .* same version, and of the same experiment"):
        other(Task(0, 1, phase, 0.1, message), {})


def test_clients_that_lost_the_model_they_held_are_sent_a_compressed_one() -> None:
    model, data = tiny_model(), tiny_data()
    recipe = tiny_recipe(cohort=6, down=codec("LQ-8"), delta=True, base="start", schedule=end_to_end(4, stages=3))
    with LocalEngine(model, data, recipe) as engine:
        done = []
        for one in federate(model, data.sizes, recipe, engine):
            done.append(one)
            engine.client_states.pop(3, None)
    parameters = sum(value.numel() for value in done[-1].progress.params.values())
    names = len(done[-1].progress.params)
    for one in done[2:]:  # in the second round all still hold the start
        assert one.clients == 6
        assert one.cost.down_bytes == 7 * (OVERHEAD + parameters + 8 * names)
        assert one.cost.up_bytes - done[0].cost.up_bytes == OVERHEAD


def test_another_base_is_another_experiment_and_the_usual_one_is_not_told() -> None:
    assert "base" not in describe(tiny_recipe())
    assert describe(tiny_recipe(base="start"))["base"] == "start"
    with pytest.raises(UsageError, match="base is 'zero' or 'start'"):
        tiny_recipe(base="held")
