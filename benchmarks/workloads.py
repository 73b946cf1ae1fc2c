"""The four rounds that are timed, in plain numbers and plain PyTorch: what every variant, ours and peers, must compute.

This file needs nothing but torch, since the peers run it in virtual environments of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Workload:
    """One federated round: `clients` with `examples` each, SGD with these settings, FedAvg by examples."""

    name: str
    title: str
    clients: int
    examples: int
    batch: int
    epochs: int
    shape: tuple[int, ...]
    classes: int
    parameters: int
    lr: float = 0.01
    momentum: float = 0.9
    decay: float = 1e-4

    @property
    def steps(self) -> int:
        """Optimizer steps of all clients in one round."""
        return self.clients * self.epochs * -(-self.examples // self.batch)

    @property
    def seen(self) -> int:
        """Examples that go forward and backward in one round."""
        return self.clients * self.epochs * self.examples


WORKLOADS = {
    "W0": Workload("W0", "small MLP, 1,000 clients x 20", 1000, 20, 10, 1, (64,), 10, 4_810, momentum=0.0, decay=0.0),
    "W1": Workload("W1", "EMNIST ConvNet, 68 clients x 198", 68, 198, 20, 1, (1, 28, 28), 62, 1_206_590),
    "W2": Workload("W2", "CIFAR-10 ConvNet, 10 clients x 500, 5 epochs", 10, 500, 50, 5, (3, 32, 32), 10, 122_570),
    "W3": Workload("W3", "ResNet-18 GroupNorm, 4 clients x 100", 4, 100, 20, 1, (3, 32, 32), 100, 11_220_132),
}


@lru_cache(maxsize=1)
def clients(load: Workload) -> list[tuple[Tensor, Tensor]]:
    """Inputs and labels of every client: random numbers of the right shapes, since what they show costs nothing."""
    draw = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(load.examples, *load.shape, generator=draw),
            torch.randint(load.classes, (load.examples,), generator=draw),
        )
        for _ in range(load.clients)
    ]


def net(load: Workload) -> nn.Module:
    """The model as one would write it in plain PyTorch."""
    made = {"W0": _mlp, "W1": _emnist, "W2": _cifar, "W3": _resnet18}[load.name]()
    assert sum(p.numel() for p in made.parameters()) == load.parameters, load.name
    return made


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def _emnist() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
        *(nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(128, 62),
    )


def _cifar() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 3), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(1024, 64), nn.ReLU()),
        nn.Linear(64, 10),
    )


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.GroupNorm(2, outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.GroupNorm(2, outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if inputs != outputs or stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(2, outputs))

    def forward(self, features: Tensor) -> Tensor:
        body = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(features)))))
        return self.relu(body + self.shortcut(features))


def _resnet18() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(2, 64), nn.ReLU(inplace=True)]
    inputs = 64
    for width in (64, 128, 256, 512):
        layers += [_Residual(inputs, width, 1 if width == 64 else 2), _Residual(width, width, 1)]
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100))
