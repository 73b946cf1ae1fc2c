"""The main job on the embedded default: end-to-end and progressive training side by side."""

from __future__ import annotations

from functools import partial

from progfed.data.embedded import embedded
from progfed.experiment import Experiment
from progfed.experiments.pairs import pair
from progfed.models.convnet import convnet_mnist
from progfed.rate import Cosine
from progfed.recipe import Local, Recipe
from progfed.schedule import end_to_end

STAGES = 3
ROUNDS = 60

BASE = Experiment(
    name="demo",
    run="fashion",
    model=partial(convnet_mnist, classes=10),
    data=partial(embedded, clients=50),
    recipe=Recipe(
        schedule=end_to_end(ROUNDS, stages=STAGES),
        cohort=5,
        rate=Cosine(0.05),
        local=Local(epochs=2, batch=20, momentum=0.9),
    ),
    evaluate_every=2,
    clients=50,
    examples=6000,
)

RUNS = pair(BASE, stages=STAGES)
