"""The main job on the embedded images: does growing pay, with the defaults of the library, and in small messages?

`progfed demo` adds end-to-end training for the bytes of the growing run, as `progfed run demo --compare` does.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from progfed.data.embedded import embedded
from progfed.experiments.pairs import scheduled
from progfed.models.convnet import convnet_mnist
from progfed.recipe.rate import Cosine
from progfed.recipe.recipe import Local, Recipe
from progfed.runs.experiment import Experiment
from progfed.schedule import end_to_end, progressive

ROUNDS, STAGES = 50, 3

_BASE = Experiment(
    name="demo",
    model=partial(convnet_mnist, classes=10, heads="grid"),
    data=partial(embedded, clients=50),
    recipe=Recipe(
        schedule=end_to_end(ROUNDS, stages=STAGES),
        cohort=4,
        # of 0.03, 0.05 and 0.1 the best for end-to-end training with `--validate --seed 100`: 85.7, 86.2 and 86.3 %
        rate=Cosine(0.1),
        local=Local(epochs=3, batch=20, momentum=0.9),
    ),
    evaluate_every=2,
    clients=50,
    examples=6000,
)

_GROWING = scheduled(_BASE, "progressive", progressive(ROUNDS, stages=STAGES), baseline="end-to-end")

RUNS = (
    scheduled(_BASE, "end-to-end", end_to_end(ROUNDS, stages=STAGES)),
    _GROWING,
    # all messages together take a fiftieth of the bytes of the first run
    replace(_GROWING, run="small-messages", recipe=replace(_GROWING.recipe, bytes=0.02)),
)
