"""A run and the baseline it is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from progfed.runs.experiment import Experiment
from progfed.schedule import Schedule, as_published, end_to_end, length


def scheduled(experiment: Experiment, run: str, schedule: Schedule, *, baseline: str = "") -> Experiment:
    """The same experiment under another name with another schedule."""
    return replace(experiment, run=run, baseline=baseline, recipe=replace(experiment.recipe, schedule=schedule))


def pair(
    experiment: Experiment, *, stages: int, lengths: Sequence[int] | None = None, warmup: int = 0
) -> tuple[Experiment, Experiment]:
    """`X-end-to-end` and `X`: the same experiment with the baseline's schedule and with the paper's."""
    rounds = length(experiment.recipe.schedule)
    baseline = f"{experiment.run}-end-to-end"
    growing = as_published(rounds, stages=stages, lengths=lengths, warmup=warmup)
    return (
        scheduled(experiment, baseline, end_to_end(rounds, stages=stages)),
        scheduled(experiment, experiment.run, growing, baseline=baseline),
    )
