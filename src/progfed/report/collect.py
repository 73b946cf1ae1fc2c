"""Reads run directories: every folder that holds an `experiment.json` is a run, finished or not."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from progfed.errors import StorageError, UsageError, printable
from progfed.report.measures import Measure, called, measures
from progfed.report.readable import Settings, clean, readable
from progfed.runs.directory import Record, RunDirectory, flatten, read_json

_MOVED_ASIDE = re.compile(r"\.old\d+$")  # the name that `--fresh` gives to an earlier run


@dataclass(frozen=True)
class Point:
    """A run after one round: its stage, its metric if it was evaluated, and its costs up to there.

    `memory_bytes` is the peak of training in this round; 0 in records from before it was counted. `rejected` counts the
    updates of this round that were not used, by reason. `metrics` has all of them by name, where a run has several.
    `device_hours` is what the run would have taken so far on the clients' devices; None where they are not known.
    """

    round: int
    stage: int
    warmup: bool
    metric: float | None
    down_bytes: int
    up_bytes: int
    paper_bytes: int
    flops: int
    seconds: float
    memory_bytes: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    device_hours: float | None = None

    @property
    def bytes(self) -> int:
        return self.down_bytes + self.up_bytes


@dataclass(frozen=True)
class Run:
    """One seed of one run, as read from its folder.

    `settings` is what the run was asked to do, flattened, without what a seed changes: runs with equal settings may
    be averaged. `readable` is the same and more, for people. `task` is the data it learned from: metrics on the same
    task may share a chart. `budget` is T and `planned` all rounds, warm-up included. `final_stage` is the stage that
    training ends in: rounds of earlier ones have a smaller model with a temporary head. `metric` is the one that
    decides, with its direction and unit; `others` are those that were recorded beside it.
    """

    path: Path
    experiment: str
    name: str
    baseline: str
    seed: int
    task: str
    metric: str
    budget: int
    planned: int
    final_stage: int
    settings: Settings
    points: tuple[Point, ...]
    finished: bool
    readable: Settings = ()
    higher_is_better: bool = True
    unit: str = "%"
    others: tuple[Measure, ...] = ()

    @property
    def folder(self) -> str:
        """The run's folder as text, whatever characters its name has."""
        return printable(str(self.path))

    @property
    def evaluated(self) -> tuple[Point, ...]:
        """The rounds in which the model was evaluated."""
        return tuple(point for point in self.points if point.metric is not None)

    @property
    def best(self) -> float | None:
        """The best metric of the final model; None before it was evaluated."""
        choose = max if self.higher_is_better else min
        return choose(
            (point.metric or 0.0 for point in self.evaluated if point.stage == self.final_stage), default=None
        )

    def by(self, measure: Measure) -> Run:
        """The same run, judged by another of its metrics."""
        points = tuple(replace(point, metric=point.metrics.get(measure.name)) for point in self.points)
        return replace(
            self,
            metric=measure.name,
            higher_is_better=measure.higher_is_better,
            unit=measure.unit,
            points=points,
            others=(),
        )


@dataclass(frozen=True)
class Found:
    """The runs below some folders, and a sentence for each file that is missing or cannot be read."""

    runs: tuple[Run, ...]
    problems: tuple[str, ...]


def collect(directories: Iterable[Path | str]) -> Found:
    """All runs in or below some folders.

    A damaged run becomes one of the problems in the result; folders without any run are an error.
    """
    roots = [Path(directory) for directory in directories]
    runs: list[Run] = []
    problems: list[str] = []
    for path in folders(roots, problems):
        try:
            runs.append(read_run(path, problems))
        except StorageError as error:
            problems.append(f"{error}; it is left out")
    if not runs:
        where = ", ".join(str(root) for root in roots) or "no folder"
        why = f" ({'; '.join(problems)})" if problems else ""
        raise StorageError(f"no run can be read in {where}{why}: give the folder of a `progfed run`, or one above it")
    return Found(tuple(runs), tuple(problems))


def read_run(path: Path, problems: list[str]) -> Run:
    """The run in a folder; a sentence for each file that is wrong but not necessary is added to `problems`."""
    directory = RunDirectory(path)
    described = read_json(path / "experiment.json")
    try:
        recipe, schedule = described["recipe"], described["recipe"]["schedule"]
        first, *others = measures(described)
        run = Run(
            path=path,
            experiment=clean(described["name"]),
            name=clean(described["run"]),
            baseline=clean(described["baseline"]),
            seed=int(recipe["seed"]),
            task=called(described["data"]),
            metric=first.name,
            higher_is_better=first.higher_is_better,
            unit=first.unit,
            others=tuple(others),
            budget=sum(int(phase["rounds"]) for phase in schedule if not phase["warmup"]),
            planned=sum(int(phase["rounds"]) for phase in schedule),
            final_stage=int(schedule[-1]["stage"]),
            settings=settings(described),
            points=_points(directory.records()),
            finished=_finished(directory, problems),
            readable=readable(described),
        )
    except (
        LookupError,
        TypeError,
        ValueError,
        ArithmeticError,
        AttributeError,
        StopIteration,
        RecursionError,
    ) as error:
        raise StorageError(f"{path} is damaged ({type(error).__name__}: {error})") from error
    if [point.round for point in run.points] != list(range(1, len(run.points) + 1)):
        raise StorageError(f"{directory.rounds} is damaged: its rounds do not count 1, 2, 3, …")
    return run


def settings(described: Record) -> Settings:
    """The settings in an `experiment.json`, without what differs between seeds.

    That is the seeds themselves, data drawn by them, and the exact phases.
    """
    recipe = {key: value for key, value in described["recipe"].items() if key != "schedule"}
    rounds = {True: 0, False: 0}
    for phase in described["recipe"]["schedule"]:
        rounds[bool(phase["warmup"])] += int(phase["rounds"])
    kept = {"model": described["model"], "metric": described["metric"], "recipe": recipe}
    kept |= {key: described[key] for key in ("metrics", "patience") if key in described}
    flat = flatten(kept) | {"rounds": rounds[False], "warm-up rounds": rounds[True]}
    return tuple(sorted((key, json.dumps(value)) for key, value in flat.items() if key.split(".")[-1] != "seed"))


def folders(roots: list[Path], problems: list[str]) -> list[Path]:
    """All folders with an `experiment.json`, each once; those that `--fresh` moved aside only if given themselves."""
    found: dict[Path, Path] = {}
    for root in roots:
        if not root.is_dir():
            raise UsageError(f"there is no folder {root}: give the folder of a `progfed run`, or one above it")
        for described in sorted(root.rglob("experiment.json")):
            folder = described.parent
            aside = [part for part in folder.relative_to(root).parts if _MOVED_ASIDE.search(part)]
            if aside:
                problems.append(printable(f"{folder} was moved aside by --fresh and is left out"))
            else:
                found.setdefault(folder.resolve(), folder)
    return list(found.values())


def _finished(directory: RunDirectory, problems: list[str]) -> bool:
    """Whether the run was completed, which its `summary.json` tells, since it is written last."""
    try:
        return directory.read("summary.json") is not None
    except StorageError as error:
        problems.append(f"{error}; the run counts as unfinished")
        return False


def _points(records: Iterable[Any]) -> tuple[Point, ...]:
    """A point for each record; seconds on devices are added up, for as long as every record has them."""
    points, seconds = [], 0.0
    for record in records:
        seconds += _finite(record["device_seconds"]) if "device_seconds" in record else math.nan
        points.append(replace(_point(record), device_hours=seconds / 3600 if math.isfinite(seconds) else None))
    return tuple(points)


def _point(record: Any) -> Point:
    total, metric = record["total"], record["metric"]
    return Point(
        round=int(record["round"]),
        stage=int(record["stage"]),
        warmup=bool(record["warmup"]),
        metric=None if metric is None else _finite(metric),
        down_bytes=int(total["down_bytes"]),
        up_bytes=int(total["up_bytes"]),
        paper_bytes=int(total["paper_bytes"]),
        flops=int(total["flops"]),
        seconds=_finite(total["seconds"]),
        memory_bytes=int(record.get("memory_bytes", 0)),
        metrics={clean(name): _finite(value) for name, value in record.get("metrics", {}).items()},
        rejected={clean(reason): int(count) for reason, count in record.get("rejected", {}).items()},
    )


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is not a number")
    return number
