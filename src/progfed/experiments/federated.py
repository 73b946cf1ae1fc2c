"""Table 3: the federated tasks, end-to-end and progressive (Sec. 4.3; hyper-parameters of the public settings).

As in the published loop, a step whose loss is 10 or more is skipped in the classification rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from progfed.data.brats import brats
from progfed.data.cifar import cifar10, cifar100
from progfed.data.federated_h5 import emnist
from progfed.evaluate import dice
from progfed.experiments.pairs import pair
from progfed.experiments.printed import Paper, Printed, with_baseline
from progfed.losses import dice_loss
from progfed.models.convnet import convnet_cifar, convnet_mnist
from progfed.models.resnet import resnet18
from progfed.models.unet import unet
from progfed.recipe.rate import Cosine
from progfed.recipe.recipe import Local, Recipe
from progfed.runs.experiment import Experiment
from progfed.schedule import end_to_end

EMNIST = Experiment(
    name="federated",
    run="emnist",
    model=partial(convnet_mnist, classes=62),
    data=emnist,
    recipe=Recipe(
        schedule=end_to_end(1500, stages=3),
        cohort=68,
        rate=Cosine(0.1),
        local=Local(epochs=1, batch=20, momentum=0.9, weight_decay=1e-4, skip_above=10.0, clip=None),
        weighting="uniform",
    ),
    evaluate_every=10,
    clients=3400,
    examples=671_585,
)

CIFAR10 = replace(
    EMNIST,
    run="cifar10",
    model=convnet_cifar,
    data=partial(cifar10, clients=100),
    recipe=replace(
        EMNIST.recipe,
        schedule=end_to_end(2000, stages=4),
        cohort=10,
        local=replace(EMNIST.recipe.local, epochs=5, batch=50),
    ),
    clients=100,
    examples=50_000,
)

CIFAR100 = replace(
    EMNIST,
    run="cifar100",
    model=partial(resnet18, classes=100, size=24),  # of the crops that it is trained on
    data=partial(cifar100, clients=500, partition="pachinko"),
    recipe=replace(EMNIST.recipe, schedule=end_to_end(3000, stages=4), cohort=40),
    clients=500,
    examples=50_000,
)

# the learning rate of the segmentation rows is not published
BRATS = replace(
    EMNIST,
    data=partial(brats, clients=10),
    recipe=replace(
        EMNIST.recipe,
        schedule=end_to_end(100, stages=4),
        cohort=10,
        rate=Cosine(0.05),
        local=Local(epochs=3, batch=3, momentum=0.9, loss=dice_loss, clip=None),
    ),
    metric=dice,
    evaluate_every=1,
    clients=10,
    examples=228,
)
QUARTERS = (25, 25, 25, 25)

RUNS = (
    *pair(EMNIST, stages=3, warmup=5),
    *pair(CIFAR10, stages=4),
    *pair(CIFAR100, stages=4, warmup=25),
    *(
        run
        for growth in ("symmetric", "asymmetric")
        for run in pair(
            replace(BRATS, run=f"brats-{growth}", model=partial(unet, growth=growth)), stages=4, lengths=QUARTERS
        )
    ),
)

# run; T; metric and deviation, end-to-end and progressive; by how many percent bytes fall
_TABLE_3 = (
    ("emnist", 1500, (85.75, 0.11), (85.67, 0.06), 29.49),
    ("cifar10", 2000, (84.67, 0.14), (84.85, 0.30), 29.70),
    ("cifar100", 3000, (52.08, 0.44), (53.23, 0.09), 22.90),
    ("brats-asymmetric", 100, (86.77, 0.45), (87.66, 0.49), 5.02),
    ("brats-symmetric", 100, (86.77, 0.45), (87.96, 0.03), 63.60),
)
PAPER = Paper(
    shown="Tables 3, 9 and 10, Figs. 4, 5, 10 and 13 to 17",
    rows={
        name: row
        for run, rounds, baseline, ours, saved in _TABLE_3
        for name, row in with_baseline(
            run, Printed(*baseline, rounds=rounds), Printed(*ours, bytes=1 - saved / 100, rounds=rounds)
        ).items()
    },
    bars="bytes",
)
