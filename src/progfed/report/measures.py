"""What runs were judged by, as `experiment.json` tells it: names, directions and units of metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from progfed.report.readable import clean
from progfed.runs.directory import Record


@dataclass(frozen=True)
class Measure:
    """A metric as a report needs it."""

    name: str
    higher_is_better: bool = True
    unit: str = "%"


def measures(described: Record) -> tuple[Measure, ...]:
    """The metrics of a run, the one that decides first.

    >>> measures({"metric": "progfed.evaluate:accuracy"})
    (Measure(name='accuracy', higher_is_better=True, unit='%'),)
    """
    first, more = described["metric"], described.get("metrics") or {}
    if not more:
        return (_measure(called(first), first),)
    names = sorted(more, key=lambda name: (more[name] != first, name))
    return tuple(_measure(clean(name), more[name]) for name in names)


def _measure(name: str, told: Any) -> Measure:
    if not _is_metric(told):  # a bare function: the score of each example, in percent
        return Measure(name)
    return Measure(name, bool(told["higher_is_better"]), clean(told["unit"]))


def called(described: Any) -> str:
    """The name in a description of a function or of data: `progfed.evaluate:accuracy` -> `accuracy`."""
    while isinstance(described, dict):
        keys = ("function",) if _is_metric(described) else ("call", "data", "type")
        described = next(described[key] for key in keys if key in described)
    return clean(described).rsplit(":", 1)[-1].rsplit(".", 1)[-1]


def _is_metric(described: Any) -> bool:
    return isinstance(described, dict) and described.get("type") == "Metric"
