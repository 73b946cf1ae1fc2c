"""Table 2: CIFAR-100 on one machine, which is the same loop with one client; a round is an epoch (Sec. 4.2)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from progfed.data.cifar import cifar100
from progfed.experiment import Experiment
from progfed.experiments.pairs import pair
from progfed.models.resnet import resnet18, resnet152
from progfed.models.vgg import vgg16, vgg19
from progfed.rate import MultiStep, Restart
from progfed.recipe import Local, Recipe
from progfed.schedule import end_to_end

BASE = Experiment(
    name="centralized",
    run="resnet18",
    model=partial(resnet18, classes=100),
    data=partial(cifar100, clients=1, partition="iid", crop=32, padding=4),
    recipe=Recipe(
        schedule=end_to_end(200, stages=4),
        cohort=1,
        rate=Restart(MultiStep(0.1, (0.3, 0.6, 0.8), 0.2)),
        local=Local(epochs=1, batch=128, momentum=0.9, weight_decay=5e-4),
    ),
    clients=1,
    examples=50_000,
)

RUNS = tuple(
    run
    for name, model in {"resnet18": resnet18, "resnet152": resnet152, "vgg16": vgg16, "vgg19": vgg19}.items()
    for run in pair(replace(BASE, run=name, model=partial(model, classes=100)), stages=4)
)
