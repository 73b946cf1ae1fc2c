"""A client with an optimizer of torch: the steps of a plain training loop to the bit."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from torch.optim import LBFGS, SGD, AdamW, Optimizer, RMSprop

import progfed
from progfed import rng
from progfed.blocks import Progressive
from progfed.client.sgd import Sgd
from progfed.costs.memory import PhaseMemory, phase_memory
from progfed.costs.phase import phase_cost
from progfed.errors import UsageError
from progfed.population import Examples, from_clients
from progfed.recipe.rate import Constant
from progfed.recipe.recipe import Local, StepLimit
from progfed.runs.identity import describe
from progfed.runs.train import train
from progfed.schedule import Phase, end_to_end
from tiny import tiny_experiment, tiny_recipe

NESTEROV = functools.partial(SGD, momentum=0.9, nesterov=True)
BETAS = functools.partial(AdamW, betas=(0.8, 0.9), weight_decay=0.1)


def decoupled(parameters: list[Tensor], lr: float) -> Optimizer:
    """Weight decay for matrices only, as transformers are trained."""
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=lr)


def linear() -> Progressive:
    return Progressive(
        blocks=(lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh()),),
        heads=(lambda: nn.Linear(5, 3),),
        example=torch.zeros(1, 6),
        name="linear",
    )


def client(number: int = 11) -> Examples:
    draw = rng.generator(0, "client")
    return Examples(torch.randn(number, 6, generator=draw), torch.randint(0, 3, (number,), generator=draw))


def trained(local: Local) -> dict[str, Tensor]:
    """The model after one round of one client, as progfed trains it."""
    data = from_clients([(client().inputs, client().targets)], test=(client().inputs, client().targets))
    recipe = progfed.Recipe(schedule=end_to_end(1, stages=1), cohort=1, rate=Constant(0.05), local=local)
    with progfed.LocalEngine(linear(), data, recipe) as engine:
        (done,) = progfed.federate(linear(), data.sizes, recipe, engine)
    return done.progress.params


def by_hand(local: Local, optimizer: Callable[[list[Tensor]], Optimizer]) -> dict[str, Tensor]:
    """The same round as a user would write it in torch."""
    module = linear().at(1, {**linear().init("E1", seed=0), **linear().init("G1", seed=0)}).train()
    parameters = list(module.parameters())
    start = [p.detach().clone() for p in parameters]
    steps = optimizer(parameters)
    shuffle = rng.generator(0, "shuffle", 1, 0)
    batches = [index for _ in range(local.epochs) for index in torch.randperm(11, generator=shuffle).split(local.batch)]
    batches = batches[: local.most_batches]
    for first in range(0, len(batches), local.accumulate):
        group = batches[first : first + local.accumulate]
        steps.zero_grad()
        taken = 0
        for index in group:
            loss = functional.cross_entropy(module(client().inputs[index]), client().targets[index])
            if loss < local.skip_above:
                loss.backward()
                taken += 1
        if not taken:
            continue
        for p in parameters:
            assert p.grad is not None
            p.grad /= taken
        if isinstance(local.clip, float):
            clip_grad_norm_(parameters, local.clip)
        for p, p0 in zip(parameters, start, strict=True):
            assert p.grad is not None
            if local.prox:
                p.grad.add_(p.detach() - p0, alpha=local.prox)
        steps.step()
    # what travels is the change, and the server adds it
    named = zip(module.named_parameters(), start, strict=True)
    return {name: p0 + (p.detach() - p0) for (name, p), p0 in named}


CASES: dict[str, tuple[dict[str, Any], Callable[[list[Tensor]], Optimizer]]] = {
    "AdamW": ({"optimizer": AdamW}, lambda ps: AdamW(ps, lr=0.05)),
    "a partial": ({"optimizer": BETAS}, lambda ps: AdamW(ps, lr=0.05, betas=(0.8, 0.9), weight_decay=0.1)),
    "Nesterov": ({"optimizer": NESTEROV}, lambda ps: SGD(ps, lr=0.05, momentum=0.9, nesterov=True)),
    "settings of Local": (
        {"optimizer": RMSprop, "momentum": 0.5, "weight_decay": 0.01},
        lambda ps: RMSprop(ps, lr=0.05, momentum=0.5, weight_decay=0.01),
    ),
    "a function": ({"optimizer": decoupled}, lambda ps: decoupled(ps, lr=0.05)),
    "FedProx": ({"optimizer": AdamW, "prox": 0.3}, lambda ps: AdamW(ps, lr=0.05)),
    "clipping": ({"optimizer": NESTEROV, "clip": 0.2}, lambda ps: NESTEROV(ps, lr=0.05)),
    "a limit of steps": ({"optimizer": AdamW, "steps": 4}, lambda ps: AdamW(ps, lr=0.05)),
    "accumulation": ({"optimizer": AdamW, "accumulate": 2}, lambda ps: AdamW(ps, lr=0.05)),
    "accumulation, the limit and clipping": (
        {"optimizer": AdamW, "accumulate": 2, "steps": 2, "clip": 0.2},
        lambda ps: AdamW(ps, lr=0.05),
    ),
    "steps that are skipped": ({"optimizer": AdamW, "skip_above": 1.1}, lambda ps: AdamW(ps, lr=0.05)),
    "SGD with a limit of steps": ({"steps": 3, "clip": None}, lambda ps: SGD(ps, lr=0.05)),
    "SGD with accumulation": ({"accumulate": 2, "clip": None, "momentum": 0.9}, lambda ps: SGD(ps, 0.05, 0.9)),
    "SGD with accumulation and clipping": ({"accumulate": 4, "clip": 0.2}, lambda ps: SGD(ps, 0.05)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_round_is_that_of_a_plain_loop_to_the_bit(name: str) -> None:
    settings, optimizer = CASES[name]
    local = Local(**{"epochs": 2, "batch": 4, **settings})
    found, expected = trained(local), by_hand(local, optimizer)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), key


def test_three_batches_wait_for_one_step_and_the_rest_for_the_last() -> None:
    weight = torch.zeros(3, requires_grad=True)
    step = Sgd([weight], Local(accumulate=3, clip=None), 1.0)
    for place in range(5):
        step((weight * float(place)).sum())
    assert weight.tolist() == [-1.0] * 3  # the mean of 0, 1 and 2
    step.finish()
    assert weight.tolist() == [-4.5] * 3  # and that of 3 and 4
    step.finish()
    assert weight.tolist() == [-4.5] * 3


class Hooked(nn.Linear):
    """A layer with a hook that is called when a gradient is in `.grad`."""

    seen: ClassVar[list[float]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and not hasattr(self, "hook"):
            self.hook = self.weight.register_post_accumulate_grad_hook(self._see)
        return super().forward(inputs)

    @staticmethod
    def _see(parameter: Tensor) -> None:
        assert parameter.grad is not None
        Hooked.seen.append(float(parameter.grad.norm()))


def test_gradients_reach_grad_so_that_hooks_work() -> None:
    model = Progressive(
        blocks=(lambda: Hooked(6, 5),), heads=(lambda: nn.Linear(5, 3),), example=torch.zeros(1, 6), name="hooked"
    )
    data = from_clients([(client().inputs, client().targets)], test=(client().inputs, client().targets))
    local = Local(batch=4, optimizer=AdamW)
    recipe = progfed.Recipe(schedule=end_to_end(1, stages=1), cohort=1, local=local, rate=Constant(0.01))
    Hooked.seen.clear()
    with progfed.LocalEngine(model, data, recipe) as engine:
        list(progfed.federate(model, data.sizes, recipe, engine))
    assert len([norm for norm in Hooked.seen if norm > 0]) == 3  # operations are counted on zeros


@pytest.mark.parametrize("optimizer", [AdamW, NESTEROV, decoupled])
def test_workers_and_interruptions_change_no_bit(tmp_path: Path, optimizer: Any) -> None:
    local = Local(epochs=2, batch=4, optimizer=optimizer, accumulate=2, clip=1.0)
    experiment = tiny_experiment(recipe=tiny_recipe(local=local, rate=Constant(0.01)))
    whole = progfed.run(experiment, tmp_path / "one")["model_sha256"]
    assert progfed.run(experiment, tmp_path / "two", workers=2)["model_sha256"] == whole
    rounds = train(experiment, tmp_path / "cut", data=tmp_path)
    for _ in range(4):
        next(rounds)
    rounds.close()
    assert progfed.run(experiment, tmp_path / "cut")["model_sha256"] == whole


def test_an_optimizer_is_part_of_what_an_experiment_is() -> None:
    plain, adam, betas = (describe(Local(optimizer=one)) for one in (None, AdamW, BETAS))
    assert "optimizer" not in plain
    assert "steps" not in plain
    assert "accumulate" not in plain
    assert adam["optimizer"] == "torch.optim.adamw:AdamW"
    assert betas["optimizer"] == {
        "call": "torch.optim.adamw:AdamW",
        "args": [],
        "betas": [0.8, 0.9],
        "weight_decay": 0.1,
    }


@pytest.mark.parametrize("width", [16, 400], ids=["a step that is taken", "a step of shapes"])
def test_the_state_of_an_optimizer_counts_in_memory(width: int) -> None:
    model = Progressive(
        blocks=(lambda: nn.Linear(6, width), lambda: nn.Linear(width, width)),
        heads=(lambda: nn.Linear(width, 3), lambda: nn.Linear(width, 3)),
        example=torch.zeros(1, 6),
        name="wide",
    )

    def needed(**settings: Any) -> PhaseMemory:
        return phase_memory(model, Phase(2, 1), Local(**{"batch": 4, "clip": None, **settings}))

    plain, adam = needed(), needed(optimizer=AdamW)
    assert plain.optimizer == 0
    assert 2 * plain.weights <= adam.optimizer <= 2 * plain.weights + 1000  # two moments, and the number of the step
    assert adam.peak > plain.peak
    for optimizer in (None, AdamW):  # where a batch needs most, gradients that wait come on top
        once, waiting = (needed(optimizer=optimizer, batch=4000, accumulate=number) for number in (1, 2))
        assert waiting.activations == once.activations
        assert once.peak + plain.weights // 2 < waiting.peak <= once.peak + plain.weights


def test_a_limit_of_steps_is_a_limit_of_operations() -> None:
    for steps, seen in ((None, 22), (1, 4), (3, 11), (4, 15), (6, 22), (100, 22)):
        local = Local(epochs=2, batch=4, steps=steps)
        assert local.seen(11) == seen
        data = from_clients([(client().inputs, client().targets)], test=(client().inputs, client().targets))
        recipe = progfed.Recipe(schedule=end_to_end(1, stages=1), cohort=1, local=local)
        with progfed.LocalEngine(linear(), data, recipe) as engine:
            (done,) = progfed.federate(linear(), data.sizes, recipe, engine)
        assert done.cost.flops == phase_cost(linear(), Phase(1, 1)).flops * seen


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an optimizer that has parameters": (
        {"optimizer": AdamW([torch.zeros(1, requires_grad=True)])},
        r"is a AdamW that has its parameters already, .* give the class AdamW",
    ),
    "a name": ({"optimizer": "adamw"}, "optimizer takes a class of torch.optim, .* not 'adamw'"),
    "a module": ({"optimizer": nn.Linear}, "optimizer takes a class of torch.optim"),
    "a function of nothing": ({"optimizer": lambda: None}, "cannot take a step as a client's optimizer"),
    "a function that makes none": ({"optimizer": lambda ps, lr: 5}, "makes a int, which is no torch.optim.Optimizer"),
    "a closure that is needed": ({"optimizer": LBFGS}, r"LBFGS\(parameters, lr=0.1\) cannot take a step"),
    "a rate": ({"optimizer": functools.partial(AdamW, lr=1e-3)}, "leave lr=0.001 out of AdamW"),
    "momentum twice": ({"optimizer": NESTEROV, "momentum": 0.5}, "momentum is given twice, to Local and to SGD"),
    "momentum where there is none": ({"optimizer": AdamW, "momentum": 0.5}, "AdamW takes no momentum"),
    "momentum that is kept": ({"optimizer": SGD, "momentum": 0.5, "keep_momentum": True}, "keep_momentum is for the"),
    "an option it has not": ({"optimizer": functools.partial(AdamW, beta=0.9)}, "unexpected keyword argument 'beta'"),
    "no steps": ({"steps": 0}, "steps is the most steps of a round"),
    "half a step": ({"steps": 0.5}, "steps is the most steps of a round"),
    "no accumulation": ({"accumulate": 0}, "accumulate is a whole number of 1 or more"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_optimizer_is_one_sentence(name: str) -> None:
    settings, sentence = REFUSED[name]
    with pytest.raises(UsageError, match=sentence) as refused:
        Local(**settings)
    assert "\n" not in str(refused.value)


def test_a_limit_on_the_way_of_sgd_limits_no_other_optimizer() -> None:
    assert Local(clip=StepLimit(1.0)).largest_norm(0.1) == 10.0
    assert Local(clip=StepLimit(1.0), optimizer=AdamW).largest_norm(0.1) is None
    assert Local(clip=2.0, optimizer=AdamW).largest_norm(0.1) == 2.0
    assert Local(skip_above=math.inf, optimizer=AdamW).most_batches is None
