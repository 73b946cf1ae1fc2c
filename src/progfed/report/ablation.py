"""The appendix' tables on the number of stages: at equal rounds, at equal accuracy, and at equal cost.

An experiment has them where it declares the paper's (`Paper.stage_counts`).
"""

from __future__ import annotations

import statistics

from progfed.experiments.printed import StageCount, StageCounts
from progfed.report.curves import CurvePoint, Series, Study
from progfed.report.numbers import MISSING, amount, percent, spread
from progfed.report.present import Table
from progfed.report.tables import rows

_COUNTED = "paper accounting"


def ablation_tables(study: Study) -> tuple[Table, ...]:
    """The three tables, each next to the paper's; a table that needs an unfinished run is left out."""
    paper = study.paper.stage_counts
    if paper is None:
        return ()
    baseline, budget = (_finished(study, name) for name in (paper.baseline, paper.budget))
    found = [_equal_rounds(study, paper)]
    if baseline:
        found.append(_equal_metric(study, baseline, paper))
    if budget:
        found.append(_equal_cost(study, budget, paper))
    return tuple(found)


def _finished(study: Study, name: str) -> Series | None:
    """The run of this name, if it is finished."""
    return next((series for series in study.series if series.first.name == name and series.complete), None)


def _equal_rounds(study: Study, paper: StageCounts) -> Table:
    cells = []
    for row, series in zip(rows(study), study.series, strict=True):
        metric = spread(row.metric.mean, row.metric.std) if row.metric else MISSING
        printed = _printed(paper, series)
        cells.append(
            (
                row.run,
                str(series.first.budget),
                metric,
                f"{printed.metric:.2f}" if printed else MISSING,
                amount(row.paper_bytes, "B") if row.complete else MISSING,
                _paper_cost(printed.cost if printed else None),
            )
        )
    headings = ("run", "rounds", f"{study.metric} %", f"paper {study.metric} %", f"cost ({_COUNTED})", "paper: cost")
    return Table(f"{study.experiment}: at equal rounds", headings, tuple(cells))


def _equal_metric(study: Study, baseline: Series, paper: StageCounts) -> Table:
    """What each run cost until it reached the baseline's final metric, on the means over seeds."""
    target, whole = baseline.points[-1].metric.mean, baseline.total("paper_bytes")
    cells = []
    for series in study.series:
        own = series is baseline
        point = series.points[-1] if own else next((p for p in series.points if p.metric.mean >= target), None)
        cost = _cost(series, point) if point else None
        printed = _printed(paper, series)
        cells.append(
            (
                series.label,
                str(series.first.budget),
                str(point.round) if point else MISSING,
                MISSING if cost is None else amount(cost, "B"),
                MISSING if cost is None else percent(cost / whole),
                _paper_cost(printed.to_baseline if printed else None),
                percent(printed.to_baseline / paper.rows[paper.baseline].cost)
                if printed and printed.to_baseline
                else MISSING,
            )
        )
    headings = (
        "run",
        "of rounds",
        "reached in",
        f"cost ({_COUNTED})",
        f"vs {baseline.label}",
        "paper: cost",
        "paper: share",
    )
    return Table(f"{study.experiment}: cost to reach {baseline.label}'s {target:.2f} %", headings, tuple(cells))


def _equal_cost(study: Study, budget: Series, paper: StageCounts) -> Table:
    """Each run's metric at the point where it had cost as much as the whole budget run."""
    limit = budget.total("paper_bytes")
    cells = []
    for series in study.series:
        within = [point for point in series.points if _cost(series, point) <= limit]
        printed = _printed(paper, series)
        cells.append(
            (
                series.label,
                str(series.first.budget),
                spread(within[-1].metric.mean, within[-1].metric.std) if within else MISSING,
                f"{printed.at_cost:.2f}" if printed and printed.at_cost else MISSING,
            )
        )
    headings = ("run", "of rounds", f"{study.metric} %", f"paper {study.metric} %")
    return Table(f"{study.experiment}: at the cost of {budget.label}, {amount(limit, 'B')}", headings, tuple(cells))


def _cost(series: Series, point: CurvePoint) -> float:
    return statistics.fmean(run.points[point.round - 1].paper_bytes for run in series.counted)


def _printed(paper: StageCounts, series: Series) -> StageCount | None:
    return paper.rows.get(series.first.name)


def _paper_cost(gigabytes: int | None) -> str:
    return MISSING if gigabytes is None else f"{gigabytes} GB"
