"""Table 6: which blocks learn when, on ResNet-18 in the centralized setting (Sec. 4.5)."""

from __future__ import annotations

from dataclasses import replace

from progfed.experiments.centralized import BASE
from progfed.experiments.pairs import scheduled
from progfed.experiments.printed import Paper, Printed
from progfed.schedule import end_to_end, layerwise, mixed, partial, progressive, random

ROUNDS, STAGES = 200, 4
_BASE = replace(BASE, name="strategies")

RUNS = (
    scheduled(_BASE, "end-to-end", end_to_end(ROUNDS, stages=STAGES)),
    *(
        scheduled(_BASE, name, schedule(ROUNDS, stages=STAGES), baseline="end-to-end")
        for name, schedule in {
            "progressive": progressive,
            "layerwise": layerwise,
            "partial": partial,
            "mixed": mixed,
            "random": random,
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
