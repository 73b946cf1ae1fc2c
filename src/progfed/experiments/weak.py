"""Half of the clients have a quarter of the memory: leave them out, or let them train what they can, in which way?

CIFAR-10 among 200 clients, Dirichlet(0.5), of which 20 take part: about 5,000 images, so few that those of the weak
half are missed. Four clients train in each round, whoever takes part. A quarter of the memory that the whole ConvNet
takes with batches of 20 is enough for M^3, in pieces of a batch, and not for M^4, however small the pieces:
`tests/experiments/test_weak.py` counts it. Batches are whole in these runs, since pieces change roundings only.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from progfed.data.cifar import cifar10
from progfed.experiments.pairs import scheduled
from progfed.losses import Distil
from progfed.models.convnet import convnet_cifar
from progfed.population import FederatedData
from progfed.recipe.rate import Cosine
from progfed.recipe.recipe import Local, Recipe
from progfed.runs.experiment import Experiment
from progfed.schedule import Schedule, end_to_end, every_head, in_turns

ROUNDS, STAGES, DEEPEST, CLIENTS = 50, 4, 3, 20


def some_of_cifar10(root: Path) -> FederatedData:
    """20 of 200 clients of CIFAR-10, whose images are not augmented."""
    return cifar10(root, clients=200, partition="dirichlet:0.5", augment=False).only(range(CLIENTS))


def strong_half(root: Path) -> FederatedData:
    """The strong ones of these clients, every second, and nobody else."""
    return some_of_cifar10(root).only(range(1, CLIENTS, 2))


def half_weak(root: Path) -> FederatedData:
    """All of these clients, of which the weak ones can train M^3 at most."""
    return replace(some_of_cifar10(root), deepest=(DEEPEST, STAGES) * (CLIENTS // 2))


_EVERYBODY = Experiment(
    name="weak",
    model=partial(convnet_cifar, heads="grid"),
    data=some_of_cifar10,
    recipe=Recipe(
        schedule=end_to_end(ROUNDS, stages=STAGES),
        cohort=4,
        rate=Cosine(0.05),
        local=Local(epochs=2, batch=20, momentum=0.9, weight_decay=1e-4),
    ),
    evaluate_every=10,
    clients=CLIENTS,
    examples=5486,
)


def _with_weak(run: str, schedule: Schedule, *, distil: bool = False) -> Experiment:
    """The experiment where half of the clients are weak, under a schedule."""
    local = replace(_EVERYBODY.recipe.local, between=Distil() if distil else None)
    weak = replace(_EVERYBODY, data=half_weak, recipe=replace(_EVERYBODY.recipe, local=local))
    return scheduled(weak, run, schedule, baseline="everybody-strong")


_WHOLE, _HEADS = end_to_end(ROUNDS, stages=STAGES), every_head(ROUNDS, stages=STAGES)
_STRONG = replace(_EVERYBODY, data=strong_half, clients=CLIENTS // 2, examples=2490)

RUNS = (
    scheduled(_EVERYBODY, "everybody-strong", _WHOLE),
    scheduled(_STRONG, "strong-alone", _WHOLE, baseline="everybody-strong"),
    # what the heads do by themselves
    scheduled(_EVERYBODY, "everybody-strong-every-head", _HEADS, baseline="everybody-strong"),
    scheduled(_STRONG, "strong-alone-every-head", _HEADS, baseline="everybody-strong"),
    _with_weak("first-blocks", _WHOLE),
    _with_weak("every-head", _HEADS),
    _with_weak("every-head-distil", _HEADS, distil=True),
    _with_weak("in-turns", in_turns(_HEADS)),
)
