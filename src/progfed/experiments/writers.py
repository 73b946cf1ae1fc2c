"""MNIST by writer on one machine: the paper's EMNIST setting on 539 natural clients, 5 % of them a round.

`as-published` is the paper's own recipe. Over so few rounds its shallow stages learn nothing and leave filters behind
that the full model must first mend: the background is the largest input (1.0 = paper), so that most of what a pooled
convolution sees is a constant. The other runs have ink as 1.0, and rates of their own for the shallow stages.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from progfed.data.federated_h5 import mnist_by_writer
from progfed.experiments.federated import EMNIST
from progfed.experiments.pairs import scheduled
from progfed.models.convnet import convnet_mnist
from progfed.rate import Constant, Cosine, PerStage, Restart
from progfed.schedule import end_to_end, progressive

ROUNDS, STAGES = 60, 3
_BASE = replace(
    EMNIST,
    name="writers",
    model=partial(convnet_mnist, classes=10),
    data=partial(mnist_by_writer, invert=True),
    recipe=replace(EMNIST.recipe, cohort=27, rate=PerStage((Constant(0.3), Constant(0.1), Restart(Cosine(0.1))))),
    evaluate_every=2,
    clients=539,
    examples=60_000,
)

_PUBLISHED = replace(_BASE, data=mnist_by_writer, recipe=replace(_BASE.recipe, rate=EMNIST.recipe.rate))

RUNS = (
    scheduled(_BASE, "end-to-end", end_to_end(ROUNDS, stages=STAGES)),
    scheduled(_BASE, "progressive", progressive(ROUNDS, stages=STAGES), baseline="end-to-end"),
    # what end-to-end training gives for the bytes of `progressive`, with a cosine that ends there
    scheduled(_BASE, "equal-bytes", end_to_end(40, stages=STAGES), baseline="end-to-end"),
    scheduled(_PUBLISHED, "as-published-end-to-end", end_to_end(ROUNDS, stages=STAGES)),
    scheduled(
        _PUBLISHED,
        "as-published",
        progressive(ROUNDS, stages=STAGES, warmup=1),
        baseline="as-published-end-to-end",
    ),
)
