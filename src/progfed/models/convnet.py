"""The ConvNets of the paper's EMNIST and CIFAR-10 rows (appendix, Architectures)."""

from __future__ import annotations

import torch
from torch import nn

from progfed.blocks import Progressive, pooled_head
from progfed.heads import with_heads


def convnet_mnist(classes: int = 62, *, heads: str = "pooled") -> Progressive:
    """Two convolutions and two fully connected layers on images of 1 x 28 x 28; S = 3, and the last layer is the head.

    Args:
        classes: The number of classes.
        heads: The temporary heads: `"pooled"` as in the paper, or a `"grid"` that costs little (see `with_heads`).
    """
    model = Progressive(
        blocks=(
            lambda: nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU()),
            lambda: nn.Sequential(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5)),
        ),
        heads=(pooled_head(32, classes), pooled_head(64, classes), lambda: nn.Linear(128, classes)),
        example=torch.zeros(1, 1, 28, 28),
        name="convnet-mnist",
    )
    return with_heads(model, heads)


def convnet_cifar(classes: int = 10, *, heads: str = "pooled") -> Progressive:
    """Three convolutions and two fully connected layers on images of 3 x 32 x 32; S = 4, the last layer is the head.

    Args:
        classes: The number of classes.
        heads: The temporary heads: `"pooled"` as in the paper, or a `"grid"` that costs little (see `with_heads`).
    """
    model = Progressive(
        blocks=(
            lambda: nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2)),
            lambda: nn.Sequential(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
            lambda: nn.Sequential(nn.Conv2d(64, 64, 3), nn.ReLU()),
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(1024, 64), nn.ReLU()),
        ),
        heads=(
            pooled_head(32, classes),
            pooled_head(64, classes),
            pooled_head(64, classes),
            lambda: nn.Linear(64, classes),
        ),
        example=torch.zeros(1, 3, 32, 32),
        name="convnet-cifar",
    )
    return with_heads(model, heads)
