"""A figure as SVG, written by hand: it needs no library, and reads on white and on dark paper alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from progfed.report.curves import Axis, CurvePoint, Series, Study
from progfed.report.numbers import amount, ticks

# every colour stands out at least 3:1 from white and from the near-black of a dark page
COLOURS = ("#2f81f7", "#e5690a", "#1a9f5a", "#a66df0", "#b08308", "#df4b94", "#128fa8", "#7d8590")
INK = "#76808b"
WIDTH, HEIGHT = 760, 430
LEFT, RIGHT, TOP, BOTTOM = 62, 92, 66, 52
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


@dataclass(frozen=True)
class Scale:
    """A linear map of a range of values to a range of pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / ((self.high - self.low) or 1) * (self.end - self.start)


@dataclass(frozen=True)
class Style:
    """How a curve is drawn: its colour, and whether it is dashed."""

    colour: str
    dashed: bool


def styles(study: Study) -> tuple[Style, ...]:
    """A colour per run. Where the colours would not suffice a run shares its baseline's, which is dashed; where that
    would not tell runs apart, because many have the same baseline, the colours come round again, dashed.
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


def figure(study: Study, axis: Axis) -> str:
    """The metric of every run of an experiment against a cost, as an SVG document."""
    drawn = [(series, style) for series, style in zip(study.series, styles(study), strict=True) if series.points]
    legend, height = _legend(drawn)
    x, y = _scales([series for series, _ in drawn], axis, TOP + height)
    title = f"{study.title}: {study.metric} against {axis.title}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + height}" width="{WIDTH}" '
        f'height="{HEIGHT + height}" role="img" font-family="{FONT}" font-size="13" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        f'<text x="{LEFT}" y="24" font-size="16" font-weight="600">{escape(title)}</text>',
        *legend,
        *_axes(x, y, axis, study.metric),
        *_stages(drawn, x, y, axis),
    ]
    for series, style in drawn:
        parts += _curve(series, style, x, y, axis)
    if len(drawn) <= 6:
        parts += _ends(drawn, x, y, axis)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _scales(shown: Sequence[Series], axis: Axis, top: float) -> tuple[Scale, Scale]:
    points = [point for series in shown for point in series.points]
    lows = [point.metric.mean - (point.metric.std or 0) for point in points]
    highs = [point.metric.mean + (point.metric.std or 0) for point in points]
    low, high = padded(min(lows, default=0), max(highs, default=100))
    right = max((point.at[axis.name] for point in points), default=1)
    return Scale(0, right, LEFT, WIDTH - RIGHT), Scale(low, high, top + HEIGHT - TOP - BOTTOM, top)


def padded(low: float, high: float) -> tuple[float, float]:
    """A range of percentages with some air around it, inside 0 to 100 where the values are."""
    air = max(0.04 * (high - low), 0.5)
    return (max(0.0, low - air) if low >= 0 else low - air), (min(100.0, high + air) if high <= 100 else high + air)


def _legend(drawn: Sequence[tuple[Series, Style]]) -> tuple[list[str], int]:
    """Names in their colours, in as many lines as they need; and the height of the lines after the first."""
    parts, x, y = [], LEFT, 48
    for series, style in drawn:
        width = 34 + 7.4 * len(series.label)
        if x > LEFT and x + width > WIDTH - 10:
            x, y = LEFT, y + 20
        parts.append(
            f'<path d="M{x} {y - 4}h18" stroke="{style.colour}" stroke-width="3" stroke-linecap="round"{dash(style)}/>'
            f'<text x="{x + 25}" y="{y}">{escape(series.label)}</text>'
        )
        x += round(width + 10)
    return parts, y - 48


def _axes(x: Scale, y: Scale, axis: Axis, metric: str) -> list[str]:
    parts = []
    for value in ticks(y.low, y.high):
        parts.append(
            f'<path d="M{LEFT} {y(value):.1f}H{x.end}" stroke="{INK}" stroke-opacity=".25"/>'
            f'<text x="{LEFT - 8}" y="{y(value) + 4.5:.1f}" text-anchor="end">{value:g}</text>'
        )
    for value in ticks(x.low, x.high):
        shown = _cost(value, axis)
        parts.append(f'<text x="{x(value):.1f}" y="{y.start + 20:.1f}" text-anchor="middle">{shown}</text>')
    middle = (y.start + y.end) / 2
    parts.append(f'<path d="M{LEFT} {y.start:.1f}H{x.end}" stroke="{INK}" stroke-opacity=".7"/>')
    parts.append(
        f'<text x="{(x.start + x.end) / 2:.0f}" y="{y.start + 42:.0f}" text-anchor="middle">{axis.title}</text>'
    )
    parts.append(
        f'<text transform="translate(16 {middle:.0f}) rotate(-90)" text-anchor="middle">{escape(metric)} (%)</text>'
    )
    return parts


def _stages(drawn: Sequence[tuple[Series, Style]], x: Scale, y: Scale, axis: Axis) -> list[str]:
    """Dotted lines where a model grew; names that would overlap share one place."""
    parts: list[str] = []
    places: list[tuple[float, list[int]]] = []
    for series, style in drawn:
        for border in series.borders:
            at = x(border.at[axis.name])
            parts.append(
                f'<path d="M{at:.1f} {y.end:.1f}V{y.start:.1f}" stroke="{style.colour}" stroke-dasharray="1 4" '
                'stroke-linecap="round" stroke-width="1.5"/>'
            )
            places.append((at, [border.stage]))
    merged: list[tuple[float, list[int]]] = []
    for at, numbers in sorted(places):
        if merged and at - merged[-1][0] < 46 + 12 * len(merged[-1][1]):  # the width of the name there
            merged[-1] = (at, sorted({*merged[-1][1], *numbers}))
        else:
            merged.append((at, numbers))
    for at, numbers in merged:
        text = ", ".join(str(number) for number in numbers)
        parts.append(f'<text x="{at + 4:.1f}" y="{y.start - 7:.1f}" font-size="11.5">stage {text}</text>')
    return parts


def _curve(series: Series, style: Style, x: Scale, y: Scale, axis: Axis) -> list[str]:
    """The band of one standard deviation, the line of means, and warm-up rounds as open dots."""

    def place(point: CurvePoint, shift: float = 0) -> str:
        return f"{x(point.at[axis.name]):.1f} {y(point.metric.mean + shift * (point.metric.std or 0)):.1f}"

    parts = []
    if len(series.counted) > 1:
        upper = [place(point, 1) for point in series.points]
        lower = [place(point, -1) for point in reversed(series.points)]
        parts.append(f'<path d="M{"L".join(upper + lower)}Z" fill="{style.colour}" fill-opacity=".16"/>')
    parts.append(
        f'<path d="M{"L".join(place(point) for point in series.points)}" fill="none" stroke="{style.colour}" '
        f'stroke-width="2.25" stroke-linejoin="round" stroke-linecap="round"{dash(style)}/>'
    )
    for point in series.points:
        if point.warmup:
            left, top = place(point).split()
            parts.append(
                f'<circle cx="{left}" cy="{top}" r="4" fill="none" stroke="{style.colour}" stroke-width="1.5">'
                "<title>warm-up</title></circle>"
            )
    return parts


def _ends(drawn: Sequence[tuple[Series, Style]], x: Scale, y: Scale, axis: Axis) -> list[str]:
    """A dot, the metric and the cost where each curve ends.

    A curve that ends early has its label below, where the others seldom are; labels that would overlap move down.
    """
    parts: list[str] = []
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
        parts.append(
            f'<circle cx="{left:.1f}" cy="{top:.1f}" r="4.5" fill="{style.colour}"/>'
            f'<text x="{at:.1f}" y="{label:.1f}" text-anchor="{anchor}" font-weight="600" fill="{style.colour}">'
            f"{point.metric.mean:.1f} %</text>"
            f'<text x="{at:.1f}" y="{label + 15:.1f}" text-anchor="{anchor}" font-size="11.5">'
            f"{_cost(point.at[axis.name], axis)}{' rounds' if axis.name == 'round' else ''}</text>"
        )
    return parts


def _cost(value: float, axis: Axis) -> str:
    """A cost as an axis shows it."""
    return amount(value, axis.unit) if axis.name in ("bytes", "flops") else f"{value:g} {axis.unit}".strip()


def dash(style: Style) -> str:
    """The attribute that dashes a line, where its style is dashed."""
    return ' stroke-dasharray="7 5"' if style.dashed else ""
