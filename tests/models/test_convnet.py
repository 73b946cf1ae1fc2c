"""The ConvNets of the EMNIST and CIFAR-10 rows, against the same nets written out with torch's functions."""

import torch
from torch import Tensor
from torch.nn import functional

from progfed.blocks import state
from progfed.models import convnet_cifar, convnet_mnist


def test_the_mnist_net_is_two_convolutions_and_two_fully_connected_layers() -> None:
    module = convnet_mnist().at(3).eval()
    weights = list(state(module).values())
    images = torch.rand(3, 1, 28, 28)
    hidden = functional.conv2d(functional.conv2d(images, *weights[0:2]).relu(), *weights[2:4]).relu()
    hidden = functional.linear(functional.max_pool2d(hidden, 2).flatten(1), *weights[4:6]).relu()
    assert torch.equal(module(images), functional.linear(hidden, *weights[6:8]))


def test_the_cifar_net_is_three_convolutions_and_two_fully_connected_layers() -> None:
    module = convnet_cifar().at(4).eval()
    weights = list(state(module).values())
    images = torch.rand(3, 3, 32, 32)
    hidden = functional.max_pool2d(functional.conv2d(images, *weights[0:2]).relu(), 2)
    hidden = functional.max_pool2d(functional.conv2d(hidden, *weights[2:4]).relu(), 2)
    hidden = functional.conv2d(hidden, *weights[4:6]).relu()
    hidden = functional.linear(hidden.flatten(1), *weights[6:8]).relu()
    assert torch.equal(module(images), functional.linear(hidden, *weights[8:10]))


def test_a_temporary_head_averages_over_positions_and_ends_in_one_layer() -> None:
    module = convnet_cifar().at(1).eval()
    weights = state(module)
    images = torch.rand(3, 3, 32, 32)
    features: Tensor = functional.max_pool2d(
        functional.conv2d(images, weights["E1.0.weight"], weights["E1.0.bias"]).relu(), 2
    )
    expected = features.mean((2, 3)) @ weights["G1.fc.weight"].T + weights["G1.fc.bias"]
    torch.testing.assert_close(module(images), expected)


def test_the_number_of_classes_is_that_of_every_head() -> None:
    model = convnet_mnist(classes=10)
    assert [model.at(stage)(torch.rand(2, 1, 28, 28)).shape for stage in (1, 2, 3)] == [(2, 10)] * 3
