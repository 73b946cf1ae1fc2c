"""Tables 12 to 14: ResNet-18 on federated CIFAR-100 in 3, 4, 5 and 8 stages, over 3000 and 4000 rounds (appendix).

T_s is that of the public settings. It is T/(2S) but for S = 8 over 3000 rounds, which has 200 instead of 187.5.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from progfed.experiments.federated import CIFAR100
from progfed.experiments.pairs import scheduled
from progfed.experiments.printed import Paper, Printed, StageCount, StageCounts
from progfed.models.resnet import resnet18
from progfed.schedule import as_published, end_to_end

_BASE = replace(CIFAR100, name="stages")
_T_S = {
    (3, 3000): 500,
    (4, 3000): 375,
    (5, 3000): 300,
    (8, 3000): 200,
    (3, 4000): 666,
    (5, 4000): 400,
    (8, 4000): 250,
}

RUNS = (
    scheduled(_BASE, "end-to-end", end_to_end(3000, stages=4)),
    *(
        scheduled(
            replace(_BASE, model=partial(resnet18, classes=100, stages=stages, size=24)),
            f"s{stages}" if rounds == 3000 else f"s{stages}-{rounds}",
            as_published(
                rounds, stages=stages, lengths=[*[length] * (stages - 1), rounds - (stages - 1) * length], warmup=25
            ),
            baseline="end-to-end",
        )
        for (stages, rounds), length in _T_S.items()
    ),
)

_PRINTED = {
    "end-to-end": StageCount(3000, 52.08, 5368, 5368, 51.19),
    "s3": StageCount(3000, 51.33, 4418),
    "s4": StageCount(3000, 53.23, 4179, 3804, 53.23),
    "s5": StageCount(3000, 51.53, 4264),
    "s8": StageCount(3000, 50.70, 3901),
    "s3-4000": StageCount(4000, 53.80, 5695, 4365, 52.33),
    "s5-4000": StageCount(4000, 54.25, 5479, 3781, 53.56),
    "s8-4000": StageCount(4000, 54.46, 5166, 3421, 53.50),
}
PAPER = Paper(
    shown="Tables 12 to 14",
    rows={
        run: Printed(row.metric, bytes=row.cost / _PRINTED["end-to-end"].cost, rounds=row.rounds)
        for run, row in _PRINTED.items()
    },
    stage_counts=StageCounts(_PRINTED, baseline="end-to-end", budget="s4"),
)
