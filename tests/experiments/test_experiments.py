"""Every experiment of the package: it plans at the paper's full scale, and trains, on synthetic data of its shapes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from progfed import experiments, rng
from progfed.blocks import Progressive, pooled_head
from progfed.engines.local import LocalEngine
from progfed.errors import UsageError
from progfed.models.resnet import resnet18, resnet152
from progfed.models.vgg import vgg16, vgg19
from progfed.population import FederatedData, from_clients
from progfed.runs.experiment import Experiment
from progfed.runs.identity import describe
from progfed.runs.plan import Known, plan, relative
from progfed.schedule import Phase, Schedule
from progfed.server.loop import federate
from progfed.tensors import leaves, tree_map

LARGEST = 16  # of a volume's sides: a U-Net takes any size
ALL = [experiment for name in experiments.NAMES for experiment in experiments.load(name)]
WHOLE = {str(describe(experiment.model)): experiment for experiment in ALL}
"""The last run of every model, which trains all of it; in the other runs of a large one a small one stands in."""
LARGE = (resnet18, resnet152, vgg16, vgg19)


def small_model(stages: int, classes: int) -> Progressive:
    """Blocks of one narrow convolution, to stand in for a large model of as many stages."""
    return Progressive(
        blocks=tuple(partial(nn.Conv2d, 3 if stage == 0 else 4, 4, 3) for stage in range(stages)),
        heads=(pooled_head(4, classes),) * stages,
        example=torch.zeros(1, 3, 32, 32),
        name="small",
    )


def model_of(experiment: Experiment) -> Any:
    """How to make the model that a run is tried with."""
    large = isinstance(experiment.model, partial) and experiment.model.func in LARGE
    if large and WHOLE[str(describe(experiment.model))] is not experiment:
        return partial(small_model, experiment.recipe.schedule[-1].stage, 100)
    return experiment.model


def small(leaf: torch.Tensor, number: int) -> torch.Tensor:
    """Some inputs like the example: normal numbers of at most 16 voxels a side, or tokens 0 and 1."""
    sides = [min(side, LARGEST) if leaf.dim() == 5 else side for side in leaf.shape[2:]]
    shape = (number, *leaf.shape[1:2], *sides)
    draw = rng.generator(0, "inputs")
    return torch.randn(shape, generator=draw) if leaf.is_floating_point() else torch.randint(2, shape, generator=draw)


@cache
def outputs(make: Any) -> tuple[int, ...]:
    """The shape of what a model makes of one small example."""
    model: Progressive = make()
    inputs = tree_map(lambda leaf: small(leaf, 1).to("meta"), model.example)
    with torch.device("meta"), torch.inference_mode():
        return tuple(model.at(model.stages).to("meta").eval()(inputs).shape)


def synthetic(experiment: Experiment, model: Progressive) -> FederatedData:
    """Two clients of two examples: a label each, or one for every voxel or token."""
    shape = outputs(model_of(experiment))
    classes = shape[1] if leaves(model.example)[0].is_floating_point() else shape[-1]
    places = shape[2:] if leaves(model.example)[0].is_floating_point() else leaves(model.example)[0].shape[1:]

    def some(number: int) -> tuple[Any, torch.Tensor]:
        targets = torch.randint(classes, (number, *places), generator=rng.generator(0, "targets"))
        return tree_map(lambda leaf: small(leaf, number), model.example), targets

    return from_clients([some(2), some(2)], test=some(2), classes=classes)


def two_rounds(schedule: Schedule) -> Schedule:
    """One round of the first phase and one of the last, so that a growing run grows once."""
    if len(schedule) == 1:
        return (replace(schedule[0], rounds=2),)
    return tuple(replace(phase, rounds=1) for phase in (schedule[0], schedule[-1]))


@pytest.fixture(scope="module")
def known() -> Known:
    """Costs of phases, counted once for all experiments that have them."""
    return Known()


@pytest.mark.parametrize("name", experiments.NAMES)
def test_it_plans_at_full_scale(name: str, known: Known) -> None:
    planned = {run.run: plan(run, known) for run in experiments.load(name)}
    for run in experiments.load(name):
        total = planned[run.run]["total"]
        assert total["rounds"] == sum(phase.rounds for phase in run.recipe.schedule)
        assert min(total[cost] for cost in ("down_bytes", "up_bytes", "flops", "memory_bytes")) > 0
        fractions = relative(planned[run.run], planned[run.baseline or run.run])
        grows = run.recipe.schedule[0].stage < run.recipe.schedule[-1].stage
        longer = bool(run.baseline) and total["rounds"] > 1.1 * planned[run.baseline]["total"]["rounds"]
        assert fractions["bytes"] < 1 or longer or not grows


@pytest.mark.parametrize("experiment", ALL, ids=lambda run: f"{run.name}-{run.run}")
def test_it_trains_two_rounds_on_synthetic_data(experiment: Experiment) -> None:
    model: Progressive = model_of(experiment)()
    data = synthetic(experiment, model)
    recipe = replace(
        experiment.recipe,
        schedule=two_rounds(experiment.recipe.schedule),
        cohort=1,
        local=replace(experiment.recipe.local, epochs=1),
    )
    test = data.test_examples()
    with LocalEngine(model, data, recipe, test=test, metric=experiment.metric) as engine:
        first, second = federate(model, data.sizes, recipe, engine)
        assert 0 <= engine.evaluate(second.phase, second.progress.params) <= 100
    assert (first.clients, second.clients) == (1, 1)
    assert (first.rejected, second.rejected) == ({}, {})
    assert second.phase.stage == model.stages
    head = model.parts(Phase(model.stages, 1))[-1]
    assert any(name.startswith(f"{head}.") for name in second.progress.params)


def test_every_name_is_of_a_module_and_every_run_has_a_name_of_its_own() -> None:
    for name in experiments.NAMES:
        runs = experiments.load(name)
        assert {run.name for run in runs} == {name}
        assert len({run.run for run in runs}) == len(runs)


NET = """from progfed.schedule import progressive
from tiny import tiny_experiment, tiny_recipe

def made():
    return tiny_experiment(name=NAME, recipe=tiny_recipe(schedule=progressive(2, stages=2)))
"""


@pytest.mark.parametrize("line", ["from net import made", "from .net import made", "from mine.net import made"])
def test_a_users_file_imports_its_neighbours(tmp_path: Path, line: str) -> None:
    for name in ("first", "second"):  # neighbours of the same name, each beside its own file
        folder = tmp_path / name / "mine"
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / "net.py").write_text(f"NAME = {name!r}\n{NET}")
        (folder / "experiment.py").write_text(f"{line}\n\nEXPERIMENT = made()\n")
        assert [run.name for run in experiments.load(str(folder / "experiment.py"))] == [name]


def test_a_users_file_that_is_in_no_package_imports_its_neighbours_too(tmp_path: Path) -> None:
    (tmp_path / "nearby.py").write_text(f"NAME = 'nearby'\n{NET}")
    (tmp_path / "mine.py").write_text("import nearby\n\n\nEXPERIMENT = nearby.made()\n")
    assert experiments.load(str(tmp_path / "mine.py"))[0].name == "nearby"


def test_a_relative_import_outside_of_a_package_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from .nearby import made\n")
    with pytest.raises(UsageError, match="cannot be loaded: ImportError: attempted relative import"):
        experiments.load(str(tmp_path / "mine.py"))
