"""Tables 12 to 14: ResNet-18 on federated CIFAR-100 in 3, 4, 5 and 8 stages, over 3000 and 4000 rounds (appendix)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from progfed.experiments.federated import CIFAR100
from progfed.experiments.pairs import scheduled
from progfed.models.resnet import resnet18
from progfed.schedule import end_to_end, progressive

_BASE = replace(CIFAR100, name="stages")

RUNS = (
    scheduled(_BASE, "end-to-end", end_to_end(3000, stages=4)),
    *(
        scheduled(
            replace(_BASE, model=partial(resnet18, classes=100, stages=stages)),
            f"s{stages}" if rounds == 3000 else f"s{stages}-{rounds}",
            progressive(rounds, stages=stages, warmup=25),
            baseline="end-to-end",
        )
        for stages, rounds in ((3, 3000), (4, 3000), (5, 3000), (8, 3000), (3, 4000), (5, 4000), (8, 4000))
    ),
)
