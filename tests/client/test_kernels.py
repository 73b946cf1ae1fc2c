"""The fast form of a model computes what the plain one does: same names, same numbers, same chances."""

from __future__ import annotations

import copy
import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from progfed import rng
from progfed.client.kernels import Draws, Dropout, OneChannelConv, fast_inputs, fast_layout, gather
from progfed.client.sgd import Sgd
from progfed.models import convnet_cifar, convnet_mnist, resnet18, unet
from progfed.recipe.recipe import Local
from progfed.tensors import finite


def grads(module: nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
    outputs = module(inputs)
    return list(
        torch.autograd.grad((outputs * torch.arange(outputs.numel()).view_as(outputs)).sum(), module.parameters())
    )  # type: ignore[arg-type]


def without_dropout(module: nn.Module) -> nn.Module:
    for child in module.modules():
        if isinstance(child, nn.Dropout):
            child.p = 0.0
    return module


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=rng.generator(0, "inputs"))


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (convnet_mnist, (3, 1, 28, 28)),
        (convnet_cifar, (3, 3, 32, 32)),
        (resnet18, (2, 3, 32, 32)),
        (partial(unet, widths=(4, 8), in_channels=2, stages=2, size=8), (2, 2, 8, 8, 8)),
    ],
)
def test_names_outputs_and_gradients_are_those_of_the_plain_model(make: object, shape: tuple[int, ...]) -> None:
    model = make()  # type: ignore[operator]
    plain = without_dropout(model.at(model.stages)).double()
    fast = fast_layout(copy.deepcopy(plain), Draws())
    assert [name for name, _ in fast.named_parameters()] == [name for name, _ in plain.named_parameters()]
    inputs = normal(*shape).double()
    assert torch.allclose(fast(inputs), plain(inputs), rtol=1e-9, atol=1e-9)
    for left, right in zip(grads(fast, inputs), grads(plain, inputs), strict=True):
        assert torch.allclose(left, right, rtol=1e-7, atol=1e-9)


def test_pooling_before_relu_is_equal_to_the_bit_gradients_included() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    fast = fast_layout(copy.deepcopy(plain))
    assert [type(child) for child in fast.children()] == [nn.Conv2d, nn.MaxPool2d, nn.ReLU]
    inputs = normal(4, 3, 11, 11).contiguous(memory_format=torch.channels_last)
    assert torch.equal(fast(inputs), plain(inputs))
    assert all(torch.equal(a, b) for a, b in zip(grads(fast, inputs), grads(plain, inputs), strict=True))


def test_a_sequence_that_a_users_own_code_takes_apart_is_left_alone() -> None:
    class Curious(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.row = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            before = self.row[0](images)
            return before.sum() + self.row[1](before).sum()

    with rng.default(0, "net"):
        plain = Curious()
    fast = fast_layout(nn.Sequential(copy.deepcopy(plain)))
    # layouts differ in the last bits of terms that cancel in the sum
    assert torch.allclose(fast(normal(2, 1, 6, 6)), plain(normal(2, 1, 6, 6)), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kernel", "padding"), [(3, 0), (3, 1), (5, (2, 0)), ((1, 3), 0)])
def test_the_gradient_of_a_convolution_of_one_channel_is_that_of_torch(
    bias: bool, kernel: int | tuple[int, int], padding: int | tuple[int, int]
) -> None:
    plain = nn.Conv2d(1, 4, kernel, padding=padding, bias=bias).double()
    fast = fast_layout(nn.Sequential(copy.deepcopy(plain)))
    assert isinstance(fast[0], OneChannelConv)  # type: ignore[index]
    inputs = normal(3, 1, 9, 8).double()
    for left, right in zip(grads(fast, inputs), grads(plain, inputs), strict=True):
        assert torch.allclose(left, right)


def test_a_convolution_whose_input_needs_a_gradient_still_gives_it() -> None:
    fast = fast_layout(nn.Sequential(nn.Conv2d(1, 4, 3)))
    inputs = normal(2, 1, 6, 6).requires_grad_()
    assert torch.autograd.grad(fast(inputs).sum(), inputs)[0].abs().sum() > 0


@pytest.mark.parametrize("p", [0.0, 0.25, 0.5, 0.1, 0.9, 1.0])
def test_dropout_keeps_each_number_with_its_chance_and_the_mean_as_it_was(p: float) -> None:
    draws, number = Draws(), 200_000
    draws.generator = rng.generator(0, "masks")
    layer = Dropout(p, draws)
    out = layer(torch.ones(number))
    dropped = int((out == 0).sum()) / number
    assert abs(dropped - p) <= 5 * math.sqrt(p * (1 - p) / number)
    kept = out[out != 0]
    assert torch.allclose(kept, torch.full_like(kept, 1 / (1 - p) if p < 1 else 0.0))
    assert torch.equal(layer.eval()(torch.ones(5)), torch.ones(5))


def test_neighbours_are_dropped_independently() -> None:
    draws, number = Draws(), 200_000
    draws.generator = rng.generator(1, "masks")
    dropped = (Dropout(0.25, draws)(torch.ones(number)) == 0).double()
    both = float((dropped[1:] * dropped[:-1]).mean())
    assert abs(both - 0.25**2) <= 5 * math.sqrt(0.25**2 / number)


def test_masks_depend_on_the_generator_alone_and_gradients_use_the_same_mask() -> None:
    draws = Draws()
    layer, seen = Dropout(0.5, draws), []
    for _ in range(2):
        draws.generator = rng.generator(3, "masks")
        torch.rand(7)  # what torch's default generator draws does not matter
        inputs = torch.ones(2, 3, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
        out = layer(inputs)
        assert torch.equal(torch.autograd.grad(out.sum(), inputs)[0], out.detach())
        seen.append(out.detach())
    assert torch.equal(*seen)


@pytest.mark.parametrize("shape", [(9,), (9, 4), (9, 3, 5, 6), (9, 1, 5, 6), (9, 2, 3, 4, 5)])
@pytest.mark.parametrize("ready", [True, False])
def test_gathering_is_indexing_and_keeps_the_layout(shape: tuple[int, ...], ready: bool) -> None:
    inputs, index = normal(*shape), torch.tensor([3, 0, 8, 3])
    gathered = gather({"x": (fast_inputs(inputs) if ready else inputs,)}, index)["x"][0]
    assert torch.equal(gathered, inputs[index])
    if ready and len(shape) == 4:
        assert gathered.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("shape", [(8, 8), (3, 7), (5,), (4, 8, 3, 3)])
def test_sgd_is_torch_sgd_to_the_bit(momentum: float, decay: float, shape: tuple[int, ...]) -> None:
    draw = rng.generator(0, "sgd")
    ours = torch.randn(shape, generator=draw)
    ours = (ours.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else ours).requires_grad_()
    theirs = nn.Parameter(ours.detach().clone())
    optimizer = torch.optim.SGD([theirs], lr=0.1, momentum=momentum, weight_decay=decay)
    step = Sgd([ours], Local(momentum=momentum, weight_decay=decay, clip=None), 0.1)
    for _ in range(6):
        weights = torch.randn(shape, generator=draw)
        step((ours**2 * weights).sum())
        optimizer.zero_grad()
        (theirs**2 * weights).sum().backward()
        optimizer.step()
    assert torch.equal(ours.detach(), theirs.detach())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=1, max_size=8))
def test_finite_sees_every_number_even_where_sums_overflow(values: list[float]) -> None:
    assert finite({"x": torch.tensor(values)}) == all(math.isfinite(value) for value in values)


def test_finite_numbers_whose_sum_overflows_are_finite() -> None:
    assert finite({"x": torch.full((4,), 3e38)})


def test_functional_dropout_in_a_users_module_stays_reproducible() -> None:
    from conftest import tiny_data, tiny_recipe
    from progfed.blocks import Progressive
    from progfed.engines.local import LocalEngine
    from progfed.schedule import end_to_end
    from progfed.server.loop import federate

    class Forgetful(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return functional.dropout(super().forward(inputs), 0.3, self.training)

    model = Progressive((lambda: Forgetful(6, 5),), (lambda: nn.Linear(5, 3),), torch.zeros(1, 6))
    found = []
    for workers in (1, 2):
        plan, data = tiny_recipe(schedule=end_to_end(2, stages=1)), tiny_data()
        with LocalEngine(model, data, plan, workers=workers) as engine:
            found.append(list(federate(model, data.sizes, plan, engine))[-1].progress.params)
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_a_group_norm_behind_frozen_layers_learns_as_in_the_usual_layout() -> None:
    # torch's own kernel would end the process here
    images, norm = torch.randn(2, 4, 6, 6), nn.GroupNorm(2, 4)
    usual = torch.autograd.grad(norm(images).square().sum(), list(norm.parameters()))
    module = fast_layout(nn.Sequential(norm))
    fast = torch.autograd.grad(module(fast_inputs(images)).square().sum(), list(module.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(usual, fast, strict=True))
