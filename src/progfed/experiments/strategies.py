"""Table 6: which blocks learn when, on ResNet-18 in the centralized setting (Sec. 4.5)."""

from __future__ import annotations

from dataclasses import replace

from progfed.experiments.centralized import BASE
from progfed.experiments.pairs import scheduled
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
