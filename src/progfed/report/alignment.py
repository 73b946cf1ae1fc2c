"""alpha_t and q_t over training, as the paper draws the norm discrepancy: a figure and a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from progfed.analysis.discrepancy import Discrepancy
from progfed.report.curves import Series, Study
from progfed.report.metric_figure import styles
from progfed.report.numbers import MISSING
from progfed.report.panels import Chart, Line, Panel
from progfed.report.present import Table

Curves = Sequence[tuple[Series, tuple[Discrepancy, ...]]]


def alignment_table(study: Study, curves: Curves) -> Table | None:
    """alpha_t and q_t of each run in each stage, as means and extremes; None where nothing was measured."""
    cells = []
    for series, found in curves:
        for stage in sorted({one.stage for one in found}):
            own = [one for one in found if one.stage == stage]
            alphas = [one.alpha for one in own if one.alpha is not None]
            qs = [one.q for one in own if one.q is not None]
            shown = (_show(statistics.fmean, alphas), _show(min, alphas), _show(statistics.fmean, qs), _show(max, qs))
            cells.append((series.label, str(stage), str(len(own)), *shown))
    if not cells:
        return None
    headings = ("run", "stage", "models", "alpha, mean", "alpha, least", "q, mean", "q, largest")
    return Table(f"{study.experiment}: alignment and norm discrepancy (Theorem 3.3)", headings, tuple(cells))


def alignment_chart(study: Study, curves: Curves) -> Chart:
    """alpha_t, and below it q_t on a logarithmic axis, against rounds.

    Dotted lines mark the last model before each growth.
    """
    found = dict(zip((series.label for series in study.series), styles(study), strict=True))

    def lines(name: str) -> tuple[Line, ...]:
        return tuple(
            Line(
                series.label,
                found[series.label],
                tuple((one.round, value) for one in measured if (value := getattr(one, name)) is not None),
                _borders(measured),
            )
            for series, measured in curves
        )

    panels = (Panel("alpha", lines("alpha"), (0.0, 1.0)), Panel("q", lines("q"), (1.0, 1.25), log=True))
    return Chart(f"{study.title}: alignment and norm discrepancy", "rounds", panels)


def _borders(found: Sequence[Discrepancy]) -> tuple[float, ...]:
    last = {one.stage: one.round for one in found}
    return tuple(last[stage] for stage in sorted(last)[:-1])


def _show(summary: object, values: Sequence[float]) -> str:
    return f"{summary(values):.4g}" if values and callable(summary) else MISSING
