"""The numbers of a report for each run: results and costs beside the paper's, and the cost to reach a metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from progfed.experiments.printed import Printed
from progfed.report.curves import Mean, Series, Study, mean_of

SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.98, 0.99, 0.995, 0.9995, 1.0)
"""The shares of the baseline's best metric whose cost is compared (Figs. 3, 4, 6 and 11 to 15 of the paper)."""


@dataclass(frozen=True)
class Relative:
    """Costs as fractions of another run's costs."""

    bytes: float | None
    paper_bytes: float | None
    flops: float | None
    seconds: float | None


@dataclass(frozen=True)
class Area:
    """The areas under the curves of a run and of its baseline, divided by the width: mean metrics over equal costs.

    Only costs that both curves cover count: from where both were evaluated to the end of the one that ends first.
    """

    bytes: float | None
    baseline_bytes: float | None
    flops: float | None
    baseline_flops: float | None


@dataclass(frozen=True)
class Row:
    """The results and costs of a run; `relative` is None unless the run and its baseline are finished.

    `paper_bytes` are this run's, counted as the paper does; `printed` is what the paper prints for the run.
    """

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
    area: Area | None
    printed: Printed | None


@dataclass(frozen=True)
class Reach:
    """The bytes and FLOPs that a run and its baseline need to reach a share of the baseline's best; None: never."""

    run: str
    baseline: str
    share: float
    target: float
    bytes: float | None
    flops: float | None
    device_hours: float | None
    bytes_relative: float | None
    flops_relative: float | None
    device_hours_relative: float | None


def rows(study: Study) -> tuple[Row, ...]:
    """One row per run of an experiment."""
    return tuple(_row(study, series) for series in study.series)


def _row(study: Study, series: Series) -> Row:
    baseline = study.baseline(series)
    reference = study.named(study.paper.reference)
    counted = series.counted
    best = [run.best for run in counted if run.best is not None]
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
        best=mean_of(best) if best else None,
        **total,
        memory_bytes=series.memory_bytes,
        relative=_relative(series, baseline),
        reference=_relative(series, reference),
        baseline_at_same_bytes=_at_bytes(series, baseline),
        area=_area(series, baseline),
        printed=study.paper.rows.get(series.first.name),
    )


def _relative(series: Series, other: Series | None) -> Relative | None:
    if other is None or not (series.complete and other.complete):
        return None
    names = ("bytes", "paper_bytes", "flops", "seconds")
    return Relative(*(_ratio(series.total(name), other.total(name)) for name in names))


def _ratio(value: float, other: float) -> float | None:
    return value / other if other else None


def _at_bytes(series: Series, baseline: Series | None) -> float | None:
    """The baseline's metric when it had sent as many bytes as this run sends in all."""
    if baseline is None or not series.complete:
        return None
    budget = series.total("bytes")
    reached = [point.metric.mean for point in baseline.points if point.at["bytes"] <= budget]
    return reached[-1] if reached else None


def _area(series: Series, baseline: Series | None) -> Area | None:
    if baseline is None or not (series.complete and baseline.complete):
        return None
    return Area(*(area for cost in ("bytes", "flops") for area in _areas(series, baseline, cost)))


def _areas(series: Series, baseline: Series, cost: str) -> tuple[float | None, float | None]:
    """The mean heights of both curves over the costs that both cover, with straight lines between points."""
    curves = [[(point.at[cost], point.metric.mean) for point in one.points] for one in (series, baseline)]
    start, end = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    if end <= start:
        return None, None
    ours, theirs = (_mean_height(curve, start, end) for curve in curves)
    return ours, theirs


def _mean_height(curve: Sequence[tuple[float, float]], start: float, end: float) -> float:
    area = 0.0
    for (left, low), (right, high) in pairwise(curve):
        begin, stop = max(left, start), min(right, end)
        if stop > begin:
            middle = low + (high - low) * ((begin + stop) / 2 - left) / (right - left)
            area += middle * (stop - begin)
    return area / (end - start)


def reaches(study: Study) -> tuple[Reach, ...]:
    """The cost to reach each share of the baseline's best, on the curves of means; the baseline must be finished.

    The paper takes shares "of the performance of the converged baseline", and its last one is the best. Here the best
    is the highest point of the baseline's curve, which is the mean over its seeds; only its final model counts.
    Where the paper measures all runs by one (the compressed ones by the end-to-end run in floats), so does this.
    """
    found = []
    common = study.named(study.paper.reference)
    for series in study.series:
        baseline = common or study.baseline(series)
        if baseline is None or baseline is series or not baseline.complete or not has_shares(baseline):
            continue
        best = _best_of_means(baseline)
        found += [_reach(series, baseline, share, share * best) for share in SHARES]
    return tuple(found)


def _best_of_means(series: Series) -> float:
    """The best point of a finished run's curve of means, of its final model."""
    choose = max if series.first.higher_is_better else min
    return choose(point.metric.mean for point in series.points if point.stage == series.first.final_stage)


def has_shares(baseline: Series) -> bool:
    """Whether shares of a finished baseline's best mean anything: of an error, or of a number below 0, they do not."""
    return baseline.first.higher_is_better and _best_of_means(baseline) > 0


def _reach(series: Series, baseline: Series, share: float, target: float) -> Reach:
    ours, theirs = _first_at(series, target), _first_at(baseline, target)

    def relative(cost: str) -> float | None:
        return _ratio(ours[cost], theirs[cost]) if cost in ours and cost in theirs else None

    return Reach(
        run=series.label,
        baseline=baseline.label,
        share=share,
        target=target,
        bytes=ours.get("bytes"),
        flops=ours.get("flops"),
        device_hours=ours.get("device_hours"),
        bytes_relative=relative("bytes"),
        flops_relative=relative("flops"),
        device_hours_relative=relative("device_hours"),
    )


def _first_at(series: Series, target: float) -> dict[str, float]:
    """The costs at which a target was first reached; empty where it never was."""
    return next((point.at for point in series.points if point.metric.mean >= target), {})
