"""What each stage of a run cost: its rounds, bytes and FLOPs, and the memory that a client needs to take part in it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import pairwise

from progfed.report.collect import Run
from progfed.report.curves import Series, Study


@dataclass(frozen=True)
class StageCost:
    """What a stage of a run cost, as means over seeds.

    `memory_relative` is relative to the highest peak of the baseline, or of the run itself where it has none.
    """

    run: str
    stage: int
    rounds: float
    warmup_rounds: float
    bytes: float
    flops: float
    memory_bytes: int
    memory_relative: float | None


def stage_costs(study: Study) -> tuple[StageCost, ...]:
    """The stages of every run of an experiment, in order."""
    found = []
    for series in study.series:
        full = (study.baseline(series) or series).memory_bytes or series.memory_bytes
        stages = sorted({point.stage for run in series.counted for point in run.points})
        found += [_stage(series, stage, full) for stage in stages]
    return tuple(found)


def _stage(series: Series, stage: int, full: int) -> StageCost:
    points = [point for run in series.counted for point in run.points if point.stage == stage]
    memory = max(point.memory_bytes for point in points)
    seeds = len(series.counted)
    return StageCost(
        run=series.label,
        stage=stage,
        rounds=sum(not point.warmup for point in points) / seeds,
        warmup_rounds=sum(point.warmup for point in points) / seeds,
        bytes=statistics.fmean(_spent(run, stage, "bytes") for run in series.counted),
        flops=statistics.fmean(_spent(run, stage, "flops") for run in series.counted),
        memory_bytes=memory,
        memory_relative=memory / full if full else None,
    )


def _spent(run: Run, stage: int, cost: str) -> float:
    """What the rounds of a stage cost; records hold sums up to each round."""
    totals = [0, *(getattr(point, cost) for point in run.points)]
    steps = zip(run.points, pairwise(totals), strict=True)
    return float(sum(after - before for point, (before, after) in steps if point.stage == stage))
