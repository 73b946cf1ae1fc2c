"""Table 2: CIFAR-100 on one machine, which is the same loop with one client; a round is an epoch (Sec. 4.2).

Rates and augmentation are those of the public settings: end-to-end training decays by 0.2 (the paper prints 0.1),
growing training restarts a cosine every 10 epochs. The settings switch warm-up on and do not tell its length; of all
whole numbers 4 epochs give FLOPs nearest to the printed ones.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from progfed.data.cifar import cifar100
from progfed.experiments.pairs import pair
from progfed.experiments.printed import Paper, Printed, with_baseline
from progfed.models.resnet import resnet18, resnet152
from progfed.models.vgg import vgg16, vgg19
from progfed.recipe.rate import Cosine, Cycles, MultiStep
from progfed.recipe.recipe import Local, Recipe
from progfed.runs.experiment import Experiment
from progfed.schedule import end_to_end

RESTARTING = Cycles(Cosine(0.1), 20)
WARMUP = 4

BASE = Experiment(
    name="centralized",
    run="resnet18",
    model=partial(resnet18, classes=100),
    data=partial(cifar100, clients=1, partition="iid", crop=32, padding=4, jitter=0.0, rotation=15.0),
    recipe=Recipe(
        schedule=end_to_end(200, stages=4),
        cohort=1,
        rate=MultiStep(0.1, (0.3, 0.6, 0.8), 0.2),
        local=Local(epochs=1, batch=128, momentum=0.9, weight_decay=5e-4, keep_momentum=True, clip=None),
    ),
    clients=1,
    examples=50_000,
)


def rows(base: Experiment) -> tuple[Experiment, Experiment]:
    """End-to-end and growing training of one architecture, each with its own rate."""
    baseline, growing = pair(base, stages=4, warmup=WARMUP)
    return baseline, replace(growing, recipe=replace(growing.recipe, rate=RESTARTING))


RUNS = tuple(
    run
    for name, model in {"resnet18": resnet18, "resnet152": resnet152, "vgg16": vgg16, "vgg19": vgg19}.items()
    for run in rows(replace(BASE, run=name, model=partial(model, classes=100)))
)

# run; metric and deviation, end-to-end and progressive; by how many percent wall time and FLOPs fall
_TABLE_2 = (
    ("resnet18", (76.08, 0.12), (75.84, 0.28), 24.75, 14.60),
    ("resnet152", (77.77, 0.38), (78.57, 0.33), 22.75, 19.68),
    ("vgg16", (71.79, 0.15), (71.54, 0.45), 14.57, 13.02),
    ("vgg19", (70.81, 1.18), (70.90, 0.43), 22.10, 14.43),
)
PAPER = Paper(
    shown="Tables 2 and 8, Figs. 2, 3, 9, 11 and 12",
    rows={
        name: row
        for run, baseline, ours, walltime, flops in _TABLE_2
        for name, row in with_baseline(
            run,
            Printed(*baseline, rounds=200),
            Printed(*ours, flops=1 - flops / 100, seconds=1 - walltime / 100, rounds=200),
        ).items()
    },
    bars="flops",
)
