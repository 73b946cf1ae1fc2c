"""MNIST by writer on one machine: the paper's EMNIST setting on 539 natural clients, 5 % of them a round."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from progfed.data.federated_h5 import mnist_by_writer
from progfed.experiments.federated import EMNIST
from progfed.experiments.pairs import scheduled
from progfed.experiments.printed import Paper
from progfed.models.convnet import convnet_mnist
from progfed.recipe.rate import Constant, Cosine, PerStage, Restart
from progfed.schedule import as_published, end_to_end

ROUNDS, STAGES = 60, 3
_BASE = replace(
    EMNIST,
    name="writers",
    model=partial(convnet_mnist, classes=10),
    data=mnist_by_writer,
    recipe=replace(EMNIST.recipe, cohort=27),
    evaluate_every=2,
    clients=539,
    examples=60_000,
)
_RATES = PerStage((Constant(0.1), Constant(0.1), Restart(Cosine(0.1))))
_RESTARTED = replace(_BASE, recipe=replace(_BASE.recipe, rate=_RATES))
_GROWING = as_published(ROUNDS, stages=STAGES)

RUNS = (
    scheduled(_BASE, "end-to-end", end_to_end(ROUNDS, stages=STAGES)),
    scheduled(_BASE, "progressive", _GROWING, baseline="end-to-end"),
    # as published: in the warm-up the new layers learn at the full rate
    scheduled(_BASE, "warm-up", as_published(ROUNDS, stages=STAGES, warmup=1), baseline="end-to-end"),
    # what end-to-end training gives for the bytes of `progressive`, with a cosine that ends there
    scheduled(_BASE, "equal-bytes", end_to_end(40, stages=STAGES), baseline="end-to-end"),
    scheduled(_RESTARTED, "restart", _GROWING, baseline="end-to-end"),
)

PAPER = Paper(shown="Table 3, Figs. 4, 5 and 15, over fewer rounds", bars="bytes")
