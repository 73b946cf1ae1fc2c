"""What a report says of each run: results and costs, next to the paper's figures, and the cost to reach a metric."""

from __future__ import annotations

from dataclasses import dataclass

from progfed.report import paper
from progfed.report.curves import Mean, Series, Study, mean_of

SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.98, 0.99, 0.995, 0.9995, 1.0)
"""The shares of the baseline's best metric whose cost is compared (Figs. 3, 4, 6 and 11 to 15 of the paper)."""


@dataclass(frozen=True)
class Relative:
    """Costs as fractions of another run's."""

    bytes: float | None
    paper_bytes: float | None
    flops: float | None
    seconds: float | None


@dataclass(frozen=True)
class Row:
    """What a run gave and what it cost; `relative` only where it and its baseline are finished."""

    run: str
    baseline: str
    seeds: tuple[int, ...]
    complete: bool
    rounds: int
    planned: int
    metric: Mean | None
    best: Mean | None
    down_bytes: float
    up_bytes: float
    paper_bytes: float
    flops: float
    seconds: float
    memory_bytes: int
    relative: Relative | None
    reference: Relative | None
    baseline_at_same_bytes: float | None
    paper: paper.Figure | None


@dataclass(frozen=True)
class Reach:
    """The bytes and FLOPs to reach a share of the baseline's best, and the baseline's own; None: never reached."""

    run: str
    baseline: str
    share: float
    target: float
    bytes: float | None
    flops: float | None
    bytes_relative: float | None
    flops_relative: float | None


def rows(study: Study) -> tuple[Row, ...]:
    """One row per run of an experiment."""
    return tuple(_row(study, series) for series in study.series)


def _row(study: Study, series: Series) -> Row:
    baseline = study.baseline(series)
    reference = study.named(paper.REFERENCE.get(study.experiment, ""))
    counted = series.counted
    costs = ("down_bytes", "up_bytes", "paper_bytes", "flops", "seconds")
    total = {name: series.total(name) if counted else 0.0 for name in costs}
    return Row(
        run=series.label,
        baseline=baseline.label if baseline else "",
        seeds=tuple(run.seed for run in counted),
        complete=series.complete,
        rounds=max((len(run.points) for run in counted), default=0),
        planned=series.first.planned,
        metric=mean_of(run.evaluated[-1].metric or 0.0 for run in counted) if counted else None,
        best=mean_of(max(point.metric or 0.0 for point in run.evaluated) for run in counted) if counted else None,
        **total,
        memory_bytes=series.memory_bytes,
        relative=_relative(series, baseline),
        reference=_relative(series, reference),
        baseline_at_same_bytes=_at_bytes(series, baseline),
        paper=paper.figure(study.experiment, series.first.name),
    )


def _relative(series: Series, other: Series | None) -> Relative | None:
    if other is None or not (series.complete and other.complete):
        return None
    names = ("bytes", "paper_bytes", "flops", "seconds")
    return Relative(*(_ratio(series.total(name), other.total(name)) for name in names))


def _ratio(value: float, other: float) -> float | None:
    return value / other if other else None


def _at_bytes(series: Series, baseline: Series | None) -> float | None:
    """The baseline's metric when it had sent as many bytes as this run in all."""
    if baseline is None or not series.complete:
        return None
    budget = series.total("bytes")
    reached = [point.metric.mean for point in baseline.points if point.at["bytes"] <= budget]
    return reached[-1] if reached else None


def reaches(study: Study) -> tuple[Reach, ...]:
    """The cost to reach each share of the baseline's best, on the curves of means; the baseline must be finished.

    Where the paper measures all runs by one (the compressed ones by the end-to-end run in floats), so does this.
    """
    found = []
    common = study.named(paper.REFERENCE.get(study.experiment, ""))
    for series in study.series:
        baseline = common or study.baseline(series)
        if baseline is None or baseline is series or not baseline.complete:
            continue
        best = max(point.metric.mean for point in baseline.points)
        found += [_reach(series, baseline, share, share * best) for share in SHARES]
    return tuple(found)


def _reach(series: Series, baseline: Series, share: float, target: float) -> Reach:
    ours, theirs = _first_at(series, target), _first_at(baseline, target)
    relative = {name: _ratio(ours[name], theirs[name]) if ours and theirs else None for name in ("bytes", "flops")}
    return Reach(
        run=series.label,
        baseline=baseline.label,
        share=share,
        target=target,
        bytes=ours["bytes"] if ours else None,
        flops=ours["flops"] if ours else None,
        bytes_relative=relative["bytes"],
        flops_relative=relative["flops"],
    )


def _first_at(series: Series, target: float) -> dict[str, float] | None:
    return next((point.at for point in series.points if point.metric.mean >= target), None)
