"""What holds for a split model of every family: it is the original, it learns, it goes back, and it saves."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from progfed import LocalEngine, Phase, Progressive, Recipe, federate, from_clients, rng, split
from progfed.blocks import state
from progfed.costs.phase import phase_cost
from progfed.losses import token_loss
from progfed.recipe.recipe import Local
from progfed.split.trace import call, logits
from zoo import FAMILIES, Family

every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())


def made(family: Family) -> tuple[nn.Module, Progressive, Any]:
    with rng.default(0, "zoo"):
        net, inputs = family.make(), family.inputs(3)
    return net, split(net, stages=family.stages, example=inputs, **family.options), inputs


def run(net: nn.Module, inputs: Any) -> Tensor:
    """The model's own output; dropout draws the same in every call."""
    with rng.default(0, "dropout"):
        return logits(call(net, inputs))


def run_stage(module: nn.Module, inputs: Any) -> Tensor:
    with rng.default(0, "dropout"):
        output: Tensor = module(inputs)
    return output


def loss_of(family: Family) -> Any:
    return token_loss if family.targets(1).dim() == 2 else functional.cross_entropy


def train(module: nn.Module, family: Family, inputs: Any) -> None:
    """One step on all that learns, by hand."""
    learning = [p for p in module.parameters() if p.requires_grad]
    with rng.default(0, "zoo"):
        targets = family.targets(3)
    grads = torch.autograd.grad(loss_of(family)(run_stage(module.train(), inputs), targets), learning)
    with torch.no_grad():
        for parameter, grad in zip(learning, grads, strict=True):
            parameter -= 0.5 * grad


@every_family
def test_the_last_stage_is_the_original_to_the_bit_in_evaluation_and_in_training(family: Family) -> None:
    net, model, inputs = made(family)
    module = model.at(model.stages)
    assert torch.equal(run_stage(module.eval(), inputs), run(net.eval(), inputs))
    assert torch.equal(run_stage(module.train(), inputs), run(net.train(), inputs))
    if statistics := {name: value for name, value in net.named_buffers() if "running" in name}:
        held = {name.split(".", 1)[1]: value for name, value in module.named_buffers()}
        assert all(torch.equal(held[name], value) for name, value in statistics.items())


@every_family
def test_a_split_leaves_the_model_alone_and_every_tensor_in_one_part(family: Family) -> None:
    with rng.default(0, "zoo"):
        net, inputs = family.make(), family.inputs(3)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    modes = [module.training for module in net.modules()]
    model = split(net, stages=family.stages, example=inputs, **family.options)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert modes == [module.training for module in net.modules()]
    whole = model.at(model.stages)
    assert sum(p.numel() for p in whole.parameters()) == sum(p.numel() for p in net.parameters())
    assert sorted(name.split(".", 1)[1] for name, _ in whole.named_parameters()) == sorted(
        name for name, _ in net.named_parameters()
    )


@every_family
def test_every_stage_learns_all_that_it_trains(family: Family) -> None:
    _, model, inputs = made(family)
    for stage in range(1, model.stages + 1):
        module = model.at(stage)
        before = {name: value.clone() for name, value in state(module).items()}
        train(module, family, inputs)
        learning = {name for name, p in module.named_parameters() if p.requires_grad}
        moved = {name for name, value in state(module).items() if not torch.equal(value, before[name])}
        assert {name.split(".")[0] for name in moved} >= set(model.parts(Phase(stage, 1)))
        assert moved - {name for name, _ in module.named_buffers()} <= learning
        assert len(learning) >= sum(1 for _ in module.parameters()) - 2  # BERT's unused layer


@every_family
def test_what_was_trained_goes_back_into_the_original_strictly(family: Family) -> None:
    net, model, inputs = made(family)
    module = model.at(model.stages)
    train(module, family, inputs)
    before = run(net.eval(), inputs)
    net.load_state_dict(model.export(state(module)), strict=True)
    after = run(net.eval(), inputs)
    assert torch.equal(after, run_stage(module.eval(), inputs))
    assert not torch.equal(after, before)


@every_family
def test_parameters_and_flops_grow_with_the_stage(family: Family) -> None:
    _, model, _ = made(family)
    costs = [phase_cost(model, Phase(stage, 1)) for stage in range(1, model.stages + 1)]
    assert all(a.parameters < b.parameters for a, b in pairwise(costs))
    if family is not FAMILIES["lstm"]:  # torch does not count the products inside recurrent layers
        assert all(0 < a.flops < b.flops for a, b in pairwise(costs))


@every_family
def test_federated_training_sends_fewer_bytes_before_the_model_is_whole(family: Family) -> None:
    net, model, inputs = made(family)
    with rng.default(1, "zoo"):
        clients = [(family.inputs(4), family.targets(4)) for _ in range(3)]
    data = from_clients(clients, test=clients[0])
    recipe = Recipe(
        schedule=(Phase(1, 1), Phase(model.stages, 1)),
        cohort=2,
        local=Local(batch=2, momentum=0.9, loss=loss_of(family)),
    )
    with LocalEngine(model, data, recipe, workers=2) as engine:
        early, late = federate(model, data.sizes, recipe, engine)
    assert 0 < early.cost.down_bytes < late.cost.down_bytes
    assert 0 < early.cost.up_bytes < late.cost.up_bytes
    net.load_state_dict(model.export(late.progress.params), strict=True)
    assert torch.isfinite(run(net.eval(), inputs)).all()
