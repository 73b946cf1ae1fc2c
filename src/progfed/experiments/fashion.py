"""The setting that `codecs`, `growth` and `discrepancy` share: the embedded images with the paper's pooled heads.

It is older than the library's defaults, and stays as it is so that the runs of these experiments stay what they are.
"""

from __future__ import annotations

from functools import partial

from progfed.data.embedded import embedded
from progfed.experiments.pairs import scheduled
from progfed.models.convnet import convnet_mnist
from progfed.recipe.rate import Constant, Cosine, PerStage, Restart
from progfed.recipe.recipe import Local, Recipe
from progfed.runs.experiment import Experiment
from progfed.schedule import as_published, end_to_end

ROUNDS, STAGES = 50, 3

BASE = Experiment(
    name="fashion",
    model=partial(convnet_mnist, classes=10),
    data=partial(embedded, clients=50),
    recipe=Recipe(
        schedule=end_to_end(ROUNDS, stages=STAGES),
        cohort=4,
        # one 3x3 convolution, pooled, learns slowly: the shallow stages bear a larger rate than the full model
        rate=PerStage((Constant(0.1), Constant(0.1), Restart(Cosine(0.03)))),
        local=Local(epochs=3, batch=20, momentum=0.9, clip=None),
    ),
    evaluate_every=2,
    clients=50,
    examples=6000,
)

PAIR = (
    scheduled(BASE, "end-to-end", end_to_end(ROUNDS, stages=STAGES)),
    # and are kept short: their rounds are cheap, but not free
    scheduled(BASE, "progressive", as_published(ROUNDS, stages=STAGES, lengths=(4, 12, 34)), baseline="end-to-end"),
)
