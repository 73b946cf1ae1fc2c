"""Growth as it is shipped: the library's defaults on five tasks, beside end-to-end training, also for equal bytes.

Nothing is set by hand but what a user has to give: rounds, cohort, local epochs and batch, and one learning rate, the
same 0.1 for all runs. Heads, rates of the stages and the limit on steps are the defaults, and both ways of training
have them. Stages last as `progressive` says, or as `within_budget` says where that would cost more than 75 % of the
bytes. On CIFAR-10 there is also a run for half of the bytes, `within_budget(model, 100, budget=0.5)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import log

import torch
from torch import Tensor, nn

from progfed.blocks import Progressive
from progfed.data.cifar import cifar10
from progfed.data.decathlon import hippocampus
from progfed.data.embedded import embedded
from progfed.data.federated_h5 import mnist_by_writer
from progfed.data.text import embedded_speakers
from progfed.evaluate import dice, token_accuracy
from progfed.experiments.hippocampus import SIZE
from progfed.experiments.pairs import scheduled
from progfed.losses import dice_loss, token_loss
from progfed.models.convnet import convnet_cifar, convnet_mnist
from progfed.models.gpt import gpt
from progfed.models.unet import unet
from progfed.recipe.rate import Cosine
from progfed.recipe.recipe import Local, Recipe
from progfed.runs.experiment import Experiment
from progfed.schedule import end_to_end, progressive
from progfed.split import split

RATE = 0.1
SHARES = (0.954, 0.024, 0.022)
"""The shares of the hippocampus' classes among the voxels, with which every head begins."""


class Residual(nn.Module):
    """Two 3x3 convolutions with group normalisation beside a shortcut; a wider output has half the resolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.convolutions = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.GroupNorm(4, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.GroupNorm(4, outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, features: Tensor) -> Tensor:
        """The sum of both ways, rectified."""
        return torch.relu(self.convolutions(features) + self.shortcut(features))


def residual_network() -> Progressive:
    """A network as a user may bring it, 77,546 parameters for 1x28x28 images, cut into three stages by `split`."""
    net = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), Residual(16, 16)),
        Residual(16, 32),
        Residual(32, 64),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )
    return split(net, stages=3, example=torch.zeros(1, 1, 28, 28))


def compared(experiment: Experiment, lengths: Sequence[int], *, equal: int) -> tuple[Experiment, ...]:
    """End-to-end, growing over stages of these lengths, and end-to-end for `equal` rounds, which cost as many bytes.

    `equal` is rounded up, as `--compare` does: the baseline is never given less.
    """
    rounds, stages, name = sum(lengths), len(lengths), experiment.run
    baseline = f"{name}-end-to-end"
    return (
        scheduled(experiment, baseline, end_to_end(rounds, stages=stages)),
        scheduled(experiment, name, progressive(rounds, stages=stages, lengths=lengths), baseline=baseline),
        scheduled(experiment, f"{name}-equal-bytes", end_to_end(equal, stages=stages), baseline=baseline),
    )


_SGD = Local(momentum=0.9, weight_decay=1e-4)
_RECIPE = Recipe(schedule=end_to_end(1, stages=1), cohort=10, rate=Cosine(RATE), local=_SGD)

CIFAR10 = Experiment(
    name="defaults",
    run="cifar10",
    model=partial(convnet_cifar, heads="grid"),
    data=partial(cifar10, clients=100),
    recipe=replace(_RECIPE, local=replace(_SGD, epochs=5, batch=50)),
    evaluate_every=4,
    clients=100,
    examples=50_000,
)
WRITERS = replace(
    CIFAR10,
    run="writers",
    model=partial(convnet_mnist, classes=10, heads="grid"),
    data=mnist_by_writer,
    recipe=replace(_RECIPE, cohort=27),
    clients=539,
    examples=60_000,
)
HIPPOCAMPUS = replace(
    CIFAR10,
    run="hippocampus",
    model=partial(
        unet,
        widths=(8, 16, 32, 64),
        in_channels=1,
        regions=3,
        size=SIZE,
        growth="symmetric",
        bias=tuple(map(log, SHARES)),
    ),
    data=partial(hippocampus, clients=10, size=SIZE, test_fraction=60 / 260),
    recipe=replace(_RECIPE, local=replace(_SGD, epochs=3, batch=2, loss=dice_loss)),
    metric=dice,
    evaluate_every=1,
    clients=10,
    examples=200,
)
SPEAKERS = replace(
    CIFAR10,
    run="speakers",
    model=partial(gpt, context=64, layers=3, stages=3),
    data=partial(embedded_speakers, context=64),
    recipe=replace(_RECIPE, cohort=8, local=replace(_SGD, epochs=2, batch=4, loss=token_loss)),
    metric=token_accuracy,
    clients=23,
    examples=439,
)
RESIDUAL = replace(
    CIFAR10,
    run="residual",
    model=residual_network,
    data=partial(embedded, clients=50),
    recipe=replace(_RECIPE, cohort=4, local=replace(_SGD, epochs=3)),
    clients=50,
    examples=6000,
)

RUNS = (
    *compared(CIFAR10, (12, 13, 12, 63), equal=74),
    scheduled(
        CIFAR10,
        "cifar10-half",
        progressive(100, stages=4, lengths=(24, 24, 24, 28)),
        baseline="cifar10-end-to-end",
    ),
    *compared(WRITERS, (10, 10, 40), equal=41),
    *compared(HIPPOCAMPUS, (3, 3, 3, 3), equal=5),
    *compared(SPEAKERS, (17, 17, 26), equal=45),
    *compared(RESIDUAL, (8, 8, 34), equal=38),
)
