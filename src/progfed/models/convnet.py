"""The ConvNets of the paper's EMNIST and CIFAR-10 rows (appendix, Architectures)."""

from __future__ import annotations

import torch
from torch import nn

from progfed.blocks import Progressive, pooled_head
from progfed.heads import with_heads


def convnet_mnist(classes: int = 62, *, heads: str = "pooled") -> Progressive:
    """Two convolutions and two fully connected layers on 1x28x28 images; S = 3, the second FC layer is the head.

    `heads` are the temporary ones: `pooled` as in the paper, or the `grid` that costs little (see `with_heads`).
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
    """Three convolutions and two fully connected layers on 3x32x32 images; S = 4, FC2 is the head.

    `heads` are the temporary ones, as of `convnet_mnist`.
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
