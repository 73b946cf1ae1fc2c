"""alpha_t and q_t over training, as the paper draws the norm discrepancy: a figure and a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from html import escape

from progfed.analysis.discrepancy import Discrepancy
from progfed.report.curves import Series, Study
from progfed.report.numbers import MISSING, ticks
from progfed.report.present import Table
from progfed.report.svg import FONT, INK, Scale, styles

WIDTH, LEFT, RIGHT, PANEL, GAP, TOP = 760, 62, 20, 170, 44, 66
Curves = Sequence[tuple[Series, tuple[Discrepancy, ...]]]


def alignment_table(study: Study, curves: Curves) -> Table | None:
    """alpha_t and q_t by run and stage."""
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


def alignment_figure(study: Study, curves: Curves) -> str:
    """alpha_t above q_t, which has a logarithmic axis, against rounds, as an SVG document."""
    rounds = [one.round for _, found in curves for one in found]
    x = Scale(0, max(rounds), LEFT, WIDTH - RIGHT)
    qs = [math.log10(one.q) for _, found in curves for one in found if one.q]
    alphas = [one.alpha for _, found in curves for one in found if one.alpha is not None]
    panels = (
        ("alpha", Scale(min(0.0, *alphas, 0.0), 1.05, TOP + PANEL, TOP), False),
        ("q", Scale(min(0.0, *qs, 0.0), max(0.1, *qs, 0.1) * 1.05, TOP + 2 * PANEL + GAP, TOP + PANEL + GAP), True),
    )
    height = TOP + 2 * PANEL + GAP + 52
    title = f"{study.title}: alignment and norm discrepancy"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" font-family="{FONT}" font-size="13" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        f'<text x="{LEFT}" y="24" font-size="16" font-weight="600">{escape(title)}</text>',
        *_axes(x, panels),
    ]
    colours = dict(zip((series.label for series in study.series), styles(study), strict=True))
    left = LEFT
    for series, found in curves:
        colour = colours[series.label].colour
        parts.append(
            f'<path d="M{left} 44h18" stroke="{colour}" stroke-width="3"/>'
            f'<text x="{left + 25}" y="48">{escape(series.label)}</text>'
        )
        left += round(44 + 7.4 * len(series.label))
        for name, y, log in panels:
            parts += _curve([(one.round, getattr(one, name)) for one in found], colour, x, y, log)
        parts += _borders(found, colour, x, panels)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _axes(x: Scale, panels: Sequence[tuple[str, Scale, bool]]) -> list[str]:
    parts = []
    for name, y, log in panels:
        marks = range(math.ceil(y.low), math.floor(y.high) + 1) if log and y.high >= 1 else ticks(y.low, y.high, 4)
        for mark in marks:
            shown = f"{10**mark:.3g}" if log else f"{mark:g}"
            parts.append(
                f'<path d="M{LEFT} {y(mark):.1f}H{x.end}" stroke="{INK}" stroke-opacity=".25"/>'
                f'<text x="{LEFT - 8}" y="{y(mark) + 4.5:.1f}" text-anchor="end">{shown}</text>'
            )
        middle = (y.start + y.end) / 2
        parts.append(f'<text transform="translate(16 {middle:.0f}) rotate(-90)" text-anchor="middle">{name}</text>')
    bottom = panels[-1][1].start
    for mark in ticks(x.low, x.high):
        parts.append(f'<text x="{x(mark):.1f}" y="{bottom + 20:.1f}" text-anchor="middle">{mark:g}</text>')
    parts.append(f'<text x="{(x.start + x.end) / 2:.0f}" y="{bottom + 42:.0f}" text-anchor="middle">rounds</text>')
    return parts


def _curve(points: Sequence[tuple[int, float | None]], colour: str, x: Scale, y: Scale, log: bool) -> list[str]:
    """A line with a dot for each model; where a value is undefined there is none."""
    known = [(at, math.log10(value) if log else value) for at, value in points if value is not None]
    places = [f"{x(at):.1f} {y(value):.1f}" for at, value in known]
    if not places:
        return []
    line = f'<path d="M{"L".join(places)}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>'
    dots = [
        f'<circle cx="{place.split()[0]}" cy="{place.split()[1]}" r="3" fill="{colour}"><title>round {at}: '
        f"{10**value if log else value:.4g}</title></circle>"
        for place, (at, value) in zip(places, known, strict=True)
    ]
    return [line, *dots]


def _borders(
    found: Sequence[Discrepancy], colour: str, x: Scale, panels: Sequence[tuple[str, Scale, bool]]
) -> list[str]:
    """Dotted lines at the last model before each growth."""
    last = {one.stage: one.round for one in found}
    return [
        f'<path d="M{x(last[stage]):.1f} {y.end:.1f}V{y.start:.1f}" stroke="{colour}" stroke-dasharray="1 4" '
        'stroke-linecap="round" stroke-width="1.5"/>'
        for stage in sorted(last)[:-1]
        for _, y, _ in panels
    ]


def _show(summary: object, values: Sequence[float]) -> str:
    return f"{summary(values):.4g}" if values and callable(summary) else MISSING
