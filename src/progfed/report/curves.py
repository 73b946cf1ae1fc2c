"""Runs as curves: the seeds of a run are averaged, and the runs of an experiment are put side by side."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile

from progfed import experiments
from progfed.experiments.printed import Paper
from progfed.report.collect import Found, Point, Run
from progfed.report.measures import Measure


@dataclass(frozen=True)
class Axis:
    """A cost that a metric is drawn against: the field of a point, and what it is called."""

    name: str
    title: str
    unit: str


AXES = (
    Axis("bytes", "bytes sent, both directions", "B"),
    Axis("flops", "training FLOPs", "FLOP"),
    Axis("round", "rounds", ""),
    Axis("seconds", "seconds", "s"),
)
DEVICE_HOURS = Axis("device_hours", "hours on devices", "h")
"""A cost that only runs have whose clients have devices."""


@dataclass(frozen=True)
class Mean:
    """A mean over seeds, with the sample standard deviation where there are at least two."""

    mean: float
    std: float | None


def mean_of(values: Iterable[float]) -> Mean:
    """Mean and sample standard deviation.

    >>> mean_of([85.63, 85.77, 85.85]).mean
    85.75
    """
    values = list(values)
    return Mean(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class CurvePoint:
    """A round in which every seed was evaluated: the metric over seeds, and the mean of each cost so far."""

    round: int
    stage: int
    warmup: bool
    metric: Mean
    at: dict[str, float]


@dataclass(frozen=True)
class Border:
    """The costs when a model first reached a stage."""

    stage: int
    at: dict[str, float]


@dataclass(frozen=True)
class Series:
    """The seeds of one run. Means are over the finished seeds, or over all seeds while none is finished."""

    label: str
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """The first seed."""
        return self.runs[0]

    @cached_property
    def counted(self) -> tuple[Run, ...]:
        """The seeds that means are taken over."""
        finished = tuple(run for run in self.runs if run.finished and run.evaluated)
        return finished or tuple(run for run in self.runs if run.evaluated)

    @property
    def complete(self) -> bool:
        """Whether at least one seed is finished."""
        return any(run.finished and run.evaluated for run in self.runs)

    @cached_property
    def points(self) -> tuple[CurvePoint, ...]:
        """The rounds that every counted seed has evaluated, so that each point is a mean over the same seeds."""
        by_round = [{point.round: point for point in run.evaluated} for run in self.counted]
        if not by_round:
            return ()
        shared = sorted(set.intersection(*(set(points) for points in by_round)))
        return tuple(_averaged([points[number] for points in by_round]) for number in shared)

    @cached_property
    def borders(self) -> tuple[Border, ...]:
        """When the model grew, taken from the first seed that counts."""
        found: list[Border] = []
        deepest = 0
        rounds = min((len(run.points) for run in self.counted), default=0)
        for index in range(rounds):
            stage = self.counted[0].points[index].stage
            if 0 < deepest < stage:
                found.append(Border(stage, _costs([run.points[index - 1] for run in self.counted])))
            deepest = max(deepest, stage)
        return tuple(found)

    def total(self, name: str) -> float:
        """A cost at the end of the run, as the mean over seeds."""
        return statistics.fmean(getattr(run.points[-1], name) for run in self.counted)

    @property
    def memory_bytes(self) -> int:
        """The highest peak memory of training over all rounds and seeds; 0 where it was not recorded."""
        return max((point.memory_bytes for run in self.counted for point in run.points), default=0)


@dataclass(frozen=True)
class Study:
    """An experiment: its runs side by side, and what should be known of them; or a `part` of it, on one task.

    A `view` judges them by another metric than the first, where they have several.
    """

    experiment: str
    series: tuple[Series, ...]
    notes: tuple[str, ...]
    part: str = ""
    view: str = ""

    @property
    def title(self) -> str:
        return f"{self.experiment}, {self.part}" if self.part else self.experiment

    @property
    def paper(self) -> Paper:
        """What the paper shows of this experiment, as the experiment declares it."""
        return experiments.paper(self.experiment)

    @property
    def metric(self) -> str:
        return " or ".join(dict.fromkeys(series.first.metric for series in self.series))

    @property
    def unit(self) -> str:
        """The unit of the metric, where all runs have the same."""
        units = {series.first.unit for series in self.series}
        return units.pop() if len(units) == 1 else ""

    @property
    def heading(self) -> str:
        """The metric with its unit, as a column is called."""
        return f"{self.metric} {self.unit}".rstrip()

    @property
    def views(self) -> tuple[Study, ...]:
        """The experiment by its first metric, and by each of the others that runs have."""
        others = dict.fromkeys(other for series in self.series for other in series.first.others)
        return (self, *(self._by(other) for other in others))

    def _by(self, measure: Measure) -> Study:
        having = [series for series in self.series if measure in series.first.others]
        series = tuple(Series(one.label, tuple(run.by(measure) for run in one.runs)) for one in having)
        return replace(self, series=series, notes=(), view=measure.name)

    @property
    def charts(self) -> tuple[Study, ...]:
        """Everything that is drawn in a chart of its own: each task by each metric."""
        return tuple(panel for view in self.views for panel in view.panels)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The costs that every run of the experiment has recorded."""
        points = [point for series in self.series for point in series.points]
        return (*AXES, DEVICE_HOURS) if points and all(DEVICE_HOURS.name in point.at for point in points) else AXES

    @property
    def log_bytes(self) -> bool:
        """Whether bytes are drawn on a logarithmic axis: where runs differ by more than ten times in them."""
        totals = [series.points[-1].at["bytes"] for series in self.series if series.points]
        return bool(totals) and 0 < 10 * min(totals) < max(totals)

    @property
    def panels(self) -> tuple[Study, ...]:
        """The study divided into parts that can share a chart: the runs on one task."""
        tasks: dict[tuple[str, str], list[Series]] = {}
        for series in self.series:
            tasks.setdefault((series.first.task, series.first.metric), []).append(series)
        if len(tasks) == 1:
            return (self,)
        return tuple(replace(self, series=tuple(found), part=_part(found)) for found in tasks.values())

    def baseline(self, series: Series) -> Series | None:
        """The run that a run is compared with; of several, the one with the same number of rounds."""
        name = series.first.baseline
        named = [other for other in self.series if name and other.first.name == name and other.points]
        same = [other for other in named if other.first.budget == series.first.budget]
        return next(iter(same or named), None)

    def named(self, run: str) -> Series | None:
        """The run of this name; None if there is none."""
        return next((series for series in self.series if series.first.name == run and series.points), None)


def studies(found: Found) -> tuple[Study, ...]:
    """The runs grouped by experiment, run and settings; each baseline comes before the runs compared with it."""
    made = []
    for experiment in dict.fromkeys(run.experiment for run in found.runs):
        runs = _with_baselines([run for run in found.runs if run.experiment == experiment])
        notes: list[str] = []
        baselines = {run.baseline for run in runs}
        order = sorted({run.name for run in runs}, key=lambda name: (_family(name, runs), name not in baselines, name))
        printed = tuple(experiments.paper(experiment).rows)  # the paper's order, where it has one
        order.sort(key=lambda name: printed.index(name) if name in printed else len(printed))
        series = [made for name in order for made in _series([run for run in runs if run.name == name], notes)]
        made.append(Study(experiment, tuple(series), tuple(notes)))
    return tuple(made)


def _with_baselines(runs: list[Run]) -> list[Run]:
    """A run that names no baseline is compared with `RUN-end-to-end`, as `--compare` calls it, where that is there."""
    names = {run.name for run in runs}
    default = {name: f"{name}-end-to-end" for name in names if f"{name}-end-to-end" in names}
    return [replace(run, baseline=run.baseline or default.get(run.name, "")) for run in runs]


def _part(found: Sequence[Series]) -> str:
    """The beginning that the names of some runs share, such as `cifar10`; else the name of their task."""
    words = [series.first.name.split("-") for series in found]
    shared = [place[0] for place in takewhile(lambda place: len(set(place)) == 1, zip(*words, strict=False))]
    return "-".join(shared) or found[0].first.task


def _family(name: str, runs: Sequence[Run]) -> str:
    """The name that a run shares with its baseline, so that they are sorted together."""
    own = next(run.baseline for run in runs if run.name == name)
    return own or name


def _series(runs: list[Run], notes: list[str]) -> list[Series]:
    """The runs of one name as one series, or as one for each of their different settings."""
    groups: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(run.settings, []).append(run)
    if len(groups) > 1:
        notes.append(f"{runs[0].name}: folders with different settings are shown apart ({_difference(list(groups))})")
    labels = _labels(runs[0].name, [group[0] for group in groups.values()])
    return [Series(label, _once(group, notes)) for label, group in zip(labels, groups.values(), strict=True)]


def _labels(name: str, variants: Sequence[Run]) -> list[str]:
    """The label of each series: the name, with the settings that differ where there are several series."""
    if len(variants) == 1:
        return [name]
    budgets = [run.budget for run in variants]
    if len(set(budgets)) == len(budgets):
        return [f"{name} (T={budget})" for budget in budgets]
    return [f"{name} (settings {number})" for number in range(1, len(variants) + 1)]


def _difference(settings: Sequence[tuple[tuple[str, str], ...]]) -> str:
    first, second = dict(settings[0]), dict(settings[1])
    keys = [key for key in sorted(first.keys() | second.keys()) if first.get(key) != second.get(key)]
    shown = ", ".join(f"{key} {first.get(key, 'absent')} and {second.get(key, 'absent')}" for key in keys[:3])
    return shown + (f", and {len(keys) - 3} more" if len(keys) > 3 else "")


def _once(runs: list[Run], notes: list[str]) -> tuple[Run, ...]:
    """One run for each seed: of two folders with the same seed the finished one, or the one with more rounds."""
    best: dict[int, Run] = {}
    for run in runs:
        other = best.get(run.seed)
        if other is None:
            best[run.seed] = run
            continue
        better, worse = sorted((other, run), key=lambda one: (one.finished, len(one.points)), reverse=True)
        notes.append(f"{run.name}: seed {run.seed} is in two folders; {better.folder} is used, {worse.folder} is not")
        best[run.seed] = better
    return tuple(best[seed] for seed in sorted(best))


def _averaged(points: Sequence[Point]) -> CurvePoint:
    first = points[0]
    metric = mean_of(point.metric for point in points if point.metric is not None)
    return CurvePoint(first.round, first.stage, first.warmup, metric, _costs(points))


def _costs(points: Sequence[Point]) -> dict[str, float]:
    """The mean costs of some points by axis; a cost that one of them has not recorded is left out."""
    found = {axis.name: [getattr(point, axis.name) for point in points] for axis in (*AXES, DEVICE_HOURS)}
    return {name: statistics.fmean(costs) for name, costs in found.items() if None not in costs}
