"""Table 2: federated classification, end-to-end and progressive (Sec. 4.3; hyper-parameters of the public settings)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from progfed.data.cifar import cifar10
from progfed.data.federated_h5 import emnist
from progfed.experiment import Experiment
from progfed.experiments.pairs import pair
from progfed.models.convnet import convnet_cifar, convnet_mnist
from progfed.rate import Cosine
from progfed.recipe import Local, Recipe
from progfed.schedule import end_to_end

LOCAL = Local(momentum=0.9, weight_decay=1e-4)

EMNIST = Experiment(
    name="federated",
    run="emnist",
    model=partial(convnet_mnist, classes=62),
    data=emnist,
    recipe=Recipe(
        schedule=end_to_end(1500, stages=3),
        cohort=68,
        rate=Cosine(0.1),
        local=replace(LOCAL, batch=20, epochs=1),
        weighting="uniform",
    ),
    evaluate_every=10,
    clients=3400,
    examples=671_585,
)

CIFAR10 = Experiment(
    name="federated",
    run="cifar10",
    model=convnet_cifar,
    data=partial(cifar10, clients=100),
    recipe=Recipe(
        schedule=end_to_end(2000, stages=4),
        cohort=10,
        rate=Cosine(0.1),
        local=replace(LOCAL, batch=50, epochs=5),
        weighting="uniform",
    ),
    evaluate_every=10,
    clients=100,
    examples=50_000,
)

RUNS = (*pair(EMNIST, stages=3, warmup=5), *pair(CIFAR10, stages=4))
