"""What holds for every model of the paper at every stage."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from progfed import models
from progfed.blocks import Progressive, state
from progfed.schedule import Phase

CHAINS: dict[str, Callable[[], tuple[Progressive, Tensor]]] = {
    "convnet-mnist": lambda: (models.convnet_mnist(), _normal(2, 1, 28, 28)),
    "convnet-cifar": lambda: (models.convnet_cifar(), _normal(2, 3, 32, 32)),
    "vgg16": lambda: (models.vgg16(), _normal(2, 3, 32, 32)),
    "vgg19-group": lambda: (models.vgg19(norm="group", stages=2), _normal(2, 3, 32, 32)),
    "vgg16-plain": lambda: (models.vgg16(norm=None, stages=3), _normal(2, 3, 32, 32)),
    "resnet18": lambda: (models.resnet18(), _normal(2, 3, 16, 16)),
    "resnet18-batch": lambda: (models.resnet18(norm="batch", stages=2), _normal(2, 3, 16, 16)),
    "resnet18-8": lambda: (models.resnet18(stages=8), _normal(2, 3, 8, 8)),
    "resnet34": lambda: (models.resnet34(stages=5), _normal(2, 3, 8, 8)),
    "resnet50": lambda: (models.resnet50(stages=3), _normal(2, 3, 8, 8)),
    "resnet152": lambda: (models.resnet152(), _normal(2, 3, 8, 8)),
    "unet-asymmetric": lambda: (_small_unet("asymmetric", 3), _normal(2, 2, 9, 12, 7)),
    "unet-asymmetric-2d": lambda: (_small_unet("asymmetric", 2), _normal(2, 2, 17, 12)),
}
ALL = CHAINS | {
    "unet-symmetric": lambda: (_small_unet("symmetric", 3), _normal(2, 2, 9, 12, 7)),
    "unet-symmetric-2d": lambda: (_small_unet("symmetric", 2), _normal(2, 2, 17, 12)),
}


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def _small_unet(growth: str, dims: int) -> Progressive:
    return models.unet(growth=growth, dims=dims, widths=(4, 6, 8, 8, 12), in_channels=2, regions=3, size=8)


@pytest.mark.parametrize("name", CHAINS)
def test_a_stage_is_its_head_after_its_blocks_bit_for_bit(name: str) -> None:
    model, features = CHAINS[name]()
    inputs = features
    for stage in range(1, model.stages + 1):
        features = model.make(f"E{stage}").eval()(features)
        expected = model.make(f"G{stage}").eval()(features)
        assert torch.equal(model.at(stage).eval()(inputs), expected)


@pytest.mark.parametrize("name", ALL)
def test_parameters_that_survive_a_growth_keep_their_names_shapes_and_initial_values(name: str) -> None:
    model, _ = ALL[name]()
    before = state(model.at(1))
    for stage in range(2, model.stages + 1):
        after = state(model.at(stage))
        surviving = {key for key in before if model.keep_head or not key.startswith("G")}
        assert surviving < set(after)
        assert all(torch.equal(before[key], after[key]) for key in surviving)
        before = after


@pytest.mark.parametrize("name", ALL)
def test_every_parameter_of_every_stage_gets_a_gradient(name: str) -> None:
    model, inputs = ALL[name]()
    for stage in range(1, model.stages + 1):
        module = model.at(stage).train()
        outputs = module(inputs)
        (outputs * _normal(*outputs.shape)).sum().backward()
        assert [key for key, p in module.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("name", ALL)
def test_initial_values_depend_on_the_seed_and_on_nothing_drawn_before(name: str) -> None:
    model, _ = ALL[name]()
    first = model.init("E1", seed=3)
    torch.rand(5)
    again, other = model.init("E1", seed=3), model.init("E1", seed=4)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", ALL)
def test_making_a_stage_leaves_torchs_own_generator_as_it_was(name: str) -> None:
    model, _ = ALL[name]()
    before = torch.random.get_rng_state()
    model.at(1)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", ["vgg19-group", "resnet18", "resnet152", "unet-symmetric", "unet-asymmetric"])
def test_models_for_federated_training_have_no_buffers(name: str) -> None:
    model, _ = ALL[name]()
    with torch.device("meta"):
        assert list(model.phase_module(Phase(model.stages, 1)).buffers()) == []
