"""Compression on the embedded images: accuracy against all bytes, down and up, for both ways of training.

The downlink is sent with 8 bits in every compressed run.
"""

from __future__ import annotations

from dataclasses import replace

from progfed.codec import codec
from progfed.experiments import fashion
from progfed.experiments.pairs import scheduled

CODECS = {"float": "float", "lq-8": "LQ-8", "lq-8+sp-25": "LQ-8+SP-25"}

RUNS = tuple(
    scheduled(
        replace(
            base,
            name="codecs",
            recipe=replace(base.recipe, cohort=5, up=codec(up), down=codec("float" if up == "float" else "LQ-8")),
        ),
        name if base.baseline else f"{name}-end-to-end",
        base.recipe.schedule,
        baseline=f"{name}-end-to-end" if base.baseline else "",
    )
    for name, up in CODECS.items()
    for base in fashion.PAIR
)
