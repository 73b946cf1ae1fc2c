"""A run and the baseline it is compared with."""

from __future__ import annotations

from dataclasses import replace

from progfed.experiment import Experiment
from progfed.schedule import end_to_end, length, progressive


def pair(experiment: Experiment, *, stages: int, warmup: int = 0) -> tuple[Experiment, Experiment]:
    """`X-end-to-end` and `X`: the same experiment with the baseline's schedule and the paper's."""
    rounds = length(experiment.recipe.schedule)
    baseline = f"{experiment.run}-end-to-end"
    return (
        replace(
            experiment, run=baseline, recipe=replace(experiment.recipe, schedule=end_to_end(rounds, stages=stages))
        ),
        replace(
            experiment,
            baseline=baseline,
            recipe=replace(experiment.recipe, schedule=progressive(rounds, stages=stages, warmup=warmup)),
        ),
    )
