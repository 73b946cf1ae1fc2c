"""Table 6: which blocks learn when, on ResNet-18 in the centralized setting (Sec. 4.5).

As in the public settings all but the baseline restart a cosine every 10 epochs. Only `progressive` has warm-up:
`layerwise`, `partial` and `mixed` have the whole model from the first round on, and `random` has none there.
"""

from __future__ import annotations

from dataclasses import replace

from progfed.experiments.centralized import BASE, RESTARTING, WARMUP
from progfed.experiments.pairs import scheduled
from progfed.experiments.printed import Paper, Printed
from progfed.schedule import as_published, end_to_end, layerwise, mixed, partial, random

ROUNDS, STAGES = 200, 4
_BASE = replace(BASE, name="strategies")
_RESTARTING = replace(_BASE, recipe=replace(_BASE.recipe, rate=RESTARTING))

RUNS = (
    scheduled(_BASE, "end-to-end", end_to_end(ROUNDS, stages=STAGES)),
    *(
        scheduled(_RESTARTING, name, schedule, baseline="end-to-end")
        for name, schedule in {
            "progressive": as_published(ROUNDS, stages=STAGES, warmup=WARMUP),
            "layerwise": layerwise(ROUNDS, stages=STAGES),
            "partial": partial(ROUNDS, stages=STAGES),
            "mixed": mixed(ROUNDS, stages=STAGES),
            "random": random(ROUNDS, stages=STAGES),
        }.items()
    ),
)

PAPER = Paper(
    shown="Table 6, Fig. 8",
    rows={
        "end-to-end": Printed(76.08, 0.12, flops=1.0, rounds=ROUNDS),
        "progressive": Printed(75.84, 0.28, flops=0.86, rounds=ROUNDS),
        "layerwise": Printed(72.40, 0.16, flops=1.0, rounds=ROUNDS),
        "partial": Printed(74.70, 0.04, flops=1.0, rounds=ROUNDS),
        "mixed": Printed(75.04, 1.26, flops=1.0, rounds=ROUNDS),
        "random": Printed(74.38, 0.97, flops=0.88, rounds=ROUNDS),
    },
)
