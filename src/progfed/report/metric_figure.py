"""The figure of an experiment: the metric of every run against a cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from progfed.metrics import told
from progfed.report.curves import Axis, CurvePoint, Series, Study
from progfed.report.frontier import frontier
from progfed.report.numbers import amount, log_ticks, ticks
from progfed.report.svg import COLOURS, DOTTED, Band, Curve, Dot, Drawing, Rule, Scale, Shape, Style, Text, legend

WIDTH, HEIGHT = 760, 430
LEFT, RIGHT, TOP, BOTTOM = 62, 92, 66, 52
_SMALL = 11.5  # of text that says what can be read elsewhere too

Drawn = Sequence[tuple[Series, Style]]


def styles(study: Study) -> tuple[Style, ...]:
    """A colour for each run.

    Where there are more runs than colours, a run has its baseline's colour and the baseline is dashed. Where that would
    not tell runs apart, because many have the same baseline, the colours are used again, dashed.
    """
    shown = study.series
    if len(shown) <= len(COLOURS):
        return tuple(Style(COLOURS[index], False) for index in range(len(shown)))
    baselines = {series.first.baseline for series in shown}
    families = list(dict.fromkeys(series.first.baseline or series.first.name for series in shown))
    paired = tuple(
        Style(
            COLOURS[families.index(series.first.baseline or series.first.name) % len(COLOURS)],
            series.first.name in baselines,
        )
        for series in shown
    )
    if len(set(paired)) == len(shown):
        return paired
    return tuple(Style(COLOURS[index % len(COLOURS)], index >= len(COLOURS)) for index in range(len(shown)))


def figure(study: Study, axis: Axis) -> Drawing:
    """The metric of every run of an experiment against a cost."""
    drawn = [(series, style) for series, style in zip(study.series, styles(study), strict=True) if series.points]
    names, height = legend(((series.label, style) for series, style in drawn), left=LEFT, top=48, right=WIDTH - 10)
    x, y = _scales(study, axis, TOP + height)
    title = f"{study.title}: {study.metric} against {axis.title}"
    shapes = [Text(LEFT, 24, title, size=16, bold=True), *names, *_axes(x, y, axis, study)]
    shapes += _stages(drawn, x, y, axis)
    if axis.name == "bytes":
        shapes += _frontier(study, x, y)
    for series, style in drawn:
        shapes += _curve(series, style, x, y, axis)
    if len(drawn) <= 6:
        shapes += _ends(drawn, x, y, axis, study.unit)
    return Drawing(title, WIDTH, HEIGHT + height, tuple(shapes))


def _scales(study: Study, axis: Axis, top: float) -> tuple[Scale, Scale]:
    points = [point for series in study.series for point in series.points]
    lows = [point.metric.mean - (point.metric.std or 0) for point in points]
    highs = [point.metric.mean + (point.metric.std or 0) for point in points]
    low, high = padded(min(lows, default=0), max(highs, default=100), study.unit)
    costs = [point.at[axis.name] for point in points]
    log = axis.name == "bytes" and study.log_bytes
    left, right = min(costs) if log else 0, max(costs, default=1)
    return Scale(left, right, LEFT, WIDTH - RIGHT, log), Scale(low, high, top + HEIGHT - TOP - BOTTOM, top)


def padded(low: float, high: float, unit: str = "%") -> tuple[float, float]:
    """A range of values with some air around it; percentages inside 0 to 100, where the values are.

    >>> padded(50, 99.9), padded(0.5, 1.5, unit="")
    ((48.004, 100.0), (0.46, 1.54))
    """
    share = unit == "%"
    air = max(0.04 * (high - low), 0.5 if share else 0.02 * max(abs(low), abs(high)) * (low == high))
    low = max(0.0, low - air) if low >= 0 else low - air
    return low, min(100.0, high + air) if share and high <= 100 else high + air


def _axes(x: Scale, y: Scale, axis: Axis, study: Study) -> list[Shape]:
    shapes: list[Shape] = []
    for value in ticks(y.low, y.high):
        shapes.append(Rule((LEFT, y(value)), (x.end, y(value)), opacity=0.25))
        shapes.append(Text(LEFT - 8, y(value) + 4.5, f"{value:g}", "end"))
    for value in log_ticks(x.low, x.high) if x.log else ticks(x.low, x.high):
        shapes.append(Text(x(value), y.start + 20, _cost(value, axis), "middle"))
    shapes.append(Rule((LEFT, y.start), (x.end, y.start), opacity=0.7))
    shapes.append(Text((x.start + x.end) / 2, y.start + 42, axis.title, "middle"))
    shapes.append(
        Text(
            16,
            (y.start + y.end) / 2,
            f"{study.metric} ({study.unit})" if study.unit else study.metric,
            "middle",
            upward=True,
        )
    )
    return shapes


def _stages(drawn: Drawn, x: Scale, y: Scale, axis: Axis) -> list[Shape]:
    """Dotted lines where a model grew; stages whose names would overlap share one."""
    shapes: list[Shape] = []
    places: list[tuple[float, list[int]]] = []
    for series, style in drawn:
        for border in series.borders:
            at = x(border.at[axis.name])
            shapes.append(Rule((at, y.end), (at, y.start), style.colour, width=1.5, dash=DOTTED))
            places.append((at, [border.stage]))
    merged: list[tuple[float, list[int]]] = []
    for at, numbers in sorted(places):
        if merged and at - merged[-1][0] < 46 + 12 * len(merged[-1][1]):  # the width of the name there
            merged[-1] = (at, sorted({*merged[-1][1], *numbers}))
        else:
            merged.append((at, numbers))
    for at, numbers in merged:
        text = ", ".join(str(number) for number in numbers)
        shapes.append(Text(at + 4, y.start - 7, f"stage {text}", size=_SMALL))
    return shapes


def _frontier(study: Study, x: Scale, y: Scale) -> list[Shape]:
    """Thin dashes along the best of all runs for so many bytes, in steps: it holds until another is better."""
    places = [(x(one.bytes), y(one.metric)) for one in frontier(study)]
    shapes: list[Shape] = []
    for (left, level), (right, above) in pairwise([*places, (x.end, places[-1][1])] if places else []):
        for start, end in (((left, level), (right, level)), ((right, level), (right, above))):
            if start != end:
                shapes.append(Rule(start, end, width=1, opacity=0.6, dash=(3.0, 3.0)))
    return shapes


def _curve(series: Series, style: Style, x: Scale, y: Scale, axis: Axis) -> list[Shape]:
    """The band of one standard deviation, the line of means, and warm-up rounds as open dots."""

    def place(point: CurvePoint, shift: float = 0) -> tuple[float, float]:
        return x(point.at[axis.name]), y(point.metric.mean + shift * (point.metric.std or 0))

    shapes: list[Shape] = []
    if len(series.counted) > 1:
        upper = [place(point, 1) for point in series.points]
        lower = [place(point, -1) for point in reversed(series.points)]
        shapes.append(Band((*upper, *lower), style.colour))
    shapes.append(Curve(tuple(place(point) for point in series.points), style))
    warm = [place(point) for point in series.points if point.warmup]
    shapes += [Dot(left, top, 4, style.colour, filled=False, title="warm-up") for left, top in warm]
    return shapes


def _ends(drawn: Drawn, x: Scale, y: Scale, axis: Axis, unit: str) -> list[Shape]:
    """A dot, the metric and the cost where each curve ends.

    A curve that ends early has its label below, where other curves seldom are; labels that would overlap move down.
    """
    shapes: list[Shape] = []
    taken: list[tuple[float, float]] = []
    last = [(series.points[-1], style) for series, style in drawn]
    for point, style in sorted(last, key=lambda one: -one[0].metric.mean):
        left, top = x(point.at[axis.name]), y(point.metric.mean)
        edge = left > x.end - 30
        label = top + 4.5 if edge else top + 26
        while any(abs(label - other) < 34 and abs(left - beside) < 76 for beside, other in taken):
            label += 2
        taken.append((left, label))
        at, anchor = (left + 10, "start") if edge else (left, "middle")
        cost = f"{_cost(point.at[axis.name], axis)}{' rounds' if axis.name == 'round' else ''}"
        shapes.append(Dot(left, top, 4.5, style.colour))
        shapes.append(
            Text(
                at,
                label,
                f"{point.metric.mean:.1f} %" if unit == "%" else told(point.metric.mean, unit),
                anchor,
                bold=True,
                colour=style.colour,
            )
        )
        shapes.append(Text(at, label + 15, cost, anchor, size=_SMALL))
    return shapes


def _cost(value: float, axis: Axis) -> str:
    """A cost as an axis shows it."""
    return amount(value, axis.unit) if axis.name in ("bytes", "flops") else f"{value:g} {axis.unit}".strip()
