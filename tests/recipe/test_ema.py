"""The average of the model: the closed form, what is evaluated, and that a resumed run goes on with it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from progfed import Ema, fedadam, fedavg
from progfed.engines.local import LocalEngine
from progfed.errors import UsageError
from progfed.recipe.optimizers import evaluated
from progfed.runs.train import run, train
from progfed.server.loop import federate
from progfed.tensors import add
from tiny import tiny_data, tiny_experiment, tiny_model, tiny_recipe


def test_the_average_is_that_of_the_models_by_its_definition() -> None:
    server, params = Ema(0.75, of=fedadam(0.1)), {"E1.w": torch.tensor([1.0, -2.0])}
    state, average = server.init(params), params["E1.w"]
    draw = torch.Generator().manual_seed(0)
    for _ in range(6):
        step, state = server.update({"E1.w": torch.randn(2, generator=draw)}, state)
        params = add(params, step)
        average = 0.75 * average + 0.25 * params["E1.w"]
        torch.testing.assert_close(server.evaluated(params, state)["E1.w"], average)


def test_the_steps_are_those_of_the_optimizer_inside_to_the_bit() -> None:
    found = []
    for server in (fedadam(0.1), Ema(0.9, of=fedadam(0.1))):
        recipe, model, data = tiny_recipe(server=server), tiny_model(), tiny_data()
        with LocalEngine(model, data, recipe) as engine:
            found.append(list(federate(model, data.sizes, recipe, engine))[-1].progress.params)
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_a_new_block_is_averaged_from_its_first_round_on_and_a_frozen_one_draws_near() -> None:
    recipe, model, data = tiny_recipe(server=Ema(0.5)), tiny_model(), tiny_data()
    with LocalEngine(model, data, recipe) as engine:
        rounds = list(federate(model, data.sizes, recipe, engine))
    average: dict[str, torch.Tensor] = {}
    for done in rounds:
        params = done.progress.params
        for name, value in params.items():
            start = average.get(name, model.init(name.split(".")[0], seed=recipe.seed)[name])
            average[name] = 0.5 * start + 0.5 * value
        found = evaluated(recipe.server, params, done.progress.state)
        for name, value in found.items():
            torch.testing.assert_close(value, average[name])


def test_the_average_is_what_is_evaluated_and_saved(tmp_path: Path) -> None:
    plain, ema = tiny_experiment(), tiny_experiment(recipe=tiny_recipe(server=Ema(0.9)))
    run(plain, tmp_path / "plain", workers=1)
    summary = run(ema, tmp_path / "ema", workers=1)
    saved, trained = (load_file(tmp_path / name / "model.safetensors") for name in ("ema", "plain"))
    assert saved.keys() == trained.keys()
    assert not torch.equal(saved["E1.0.weight"], trained["E1.0.weight"])
    data = tiny_data().test_examples()
    with torch.no_grad():
        right = tiny_model().at(3, saved).eval()(data.inputs).argmax(1) == data.targets
    assert summary["metric"] == pytest.approx(100 * right.float().mean().item())


def test_workers_and_interruptions_change_no_bit_of_the_average(tmp_path: Path) -> None:
    experiment = tiny_experiment(recipe=tiny_recipe(server=Ema(0.9, of=fedavg(0.7))))
    run(experiment, tmp_path / "whole", workers=2)
    part = train(experiment, tmp_path / "part", data=tmp_path)
    list(islice(part, 4))
    part.close()
    run(experiment, tmp_path / "part", workers=1)
    whole, again = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "part"))
    assert whole == again


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_an_impossible_decay_is_refused(decay: float) -> None:
    with pytest.raises(UsageError, match="decay"):
        Ema(decay)
