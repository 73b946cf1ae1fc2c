"""Lines in panels one below the other, as a value: drawn as SVG here, and by `plots` in other formats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from progfed.report.numbers import ticks
from progfed.report.svg import FONT, INK, Scale, Style, dash

WIDTH, LEFT, RIGHT, HEIGHT, GAP, TOP, BOTTOM = 760, 62, 20, 170, 44, 46, 52
_LINE = 20  # of the legend


@dataclass(frozen=True)
class Line:
    """Points in order, a dot each; dotted lines stand at the `borders`."""

    label: str
    style: Style
    points: tuple[tuple[float, float], ...]
    borders: tuple[float, ...] = ()


@dataclass(frozen=True)
class Panel:
    """Lines over the same axes; the upward one shows at least the values `within`, and may be logarithmic."""

    name: str
    lines: tuple[Line, ...]
    within: tuple[float, float]
    log: bool = False

    @property
    def range(self) -> tuple[float, float]:
        """From the least value to the largest, with some air above."""
        values = [value for line in self.lines for _, value in line.points] + list(self.within)
        low, high = min(values), max(values)
        return (low, high * (high / low) ** 0.05) if self.log else (low, high + 0.05 * (high - low))

    @property
    def marks(self) -> list[float]:
        """The values that are written at the axis."""
        low, high = self.range
        if not self.log:
            return ticks(low, high, 4)
        digits = (1, 2, 5) if high / low < 300 else (1,)
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        powers = [digit * 10.0**decade for decade in decades for digit in digits]
        inside = [mark for mark in powers if low <= mark <= high]
        return inside if len(inside) > 2 else ticks(low, high, 4)


@dataclass(frozen=True)
class Chart:
    """Panels that share an axis; `names` stand on it instead of numbers, at 0, 1, 2, …, where there are any."""

    title: str
    axis: str
    panels: tuple[Panel, ...]
    names: tuple[str, ...] = ()

    @property
    def reach(self) -> tuple[float, float]:
        """The range of the shared axis."""
        if self.names:
            return -0.3, len(self.names) - 0.7
        return 0.0, max((at for panel in self.panels for line in panel.lines for at, _ in line.points), default=1.0)

    @property
    def marks(self) -> list[tuple[float, str]]:
        """Where something is written at the shared axis, and what."""
        return [*enumerate(self.names)] or [(mark, f"{mark:g}") for mark in ticks(*self.reach)]


def drawn(chart: Chart) -> str:
    """A chart as an SVG document."""
    legend, top = _legend(chart.panels)
    bottom = top + len(chart.panels) * (HEIGHT + GAP) - GAP
    x = Scale(*chart.reach, LEFT, WIDTH - RIGHT)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + BOTTOM}" width="{WIDTH}" '
        f'height="{bottom + BOTTOM}" role="img" font-family="{FONT}" font-size="13" fill="{INK}">',
        f"<title>{escape(chart.title)}</title>",
        f'<text x="{LEFT}" y="24" font-size="16" font-weight="600">{escape(chart.title)}</text>',
        *legend,
    ]
    for number, panel in enumerate(chart.panels):
        parts += _panel(panel, chart, x, top + number * (HEIGHT + GAP))
    for at, text in chart.marks:
        parts.append(f'<text x="{x(at):.1f}" y="{bottom + 20}" text-anchor="middle">{escape(text)}</text>')
    parts.append(
        f'<text x="{(x.start + x.end) / 2:.0f}" y="{bottom + 42}" text-anchor="middle">{escape(chart.axis)}</text>'
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(panels: Sequence[Panel]) -> tuple[list[str], int]:
    """Every label once, in as many rows as they need; and where the first panel may begin."""
    parts, x, y = [], LEFT, TOP
    for label, style in dict.fromkeys((line.label, line.style) for panel in panels for line in panel.lines):
        width = round(44 + 7.4 * len(label))
        if x > LEFT and x + width > WIDTH:
            x, y = LEFT, y + _LINE
        parts.append(
            f'<path d="M{x} {y - 2}h18" stroke="{style.colour}" stroke-width="3"{dash(style)}/>'
            f'<text x="{x + 25}" y="{y + 2}">{escape(label)}</text>'
        )
        x += width
    return parts, y + _LINE


def _panel(panel: Panel, chart: Chart, x: Scale, top: float) -> Iterable[str]:
    low, high = panel.range

    def height(value: float) -> float:
        place = math.log(value / low) / math.log(high / low) if panel.log else (value - low) / (high - low)
        return top + HEIGHT * (1 - place)

    for mark in panel.marks:
        yield (
            f'<path d="M{LEFT} {height(mark):.1f}H{x.end}" stroke="{INK}" stroke-opacity=".25"/>'
            f'<text x="{LEFT - 8}" y="{height(mark) + 4.5:.1f}" text-anchor="end">{mark:g}</text>'
        )
    middle = top + HEIGHT / 2
    yield f'<text transform="translate(16 {middle:.0f}) rotate(-90)" text-anchor="middle">{escape(panel.name)}</text>'
    said = dict(chart.marks) if chart.names else {}
    for line in panel.lines:
        colour = line.style.colour
        for border in line.borders:
            yield (
                f'<path d="M{x(border):.1f} {top}V{top + HEIGHT}" stroke="{colour}" stroke-dasharray="1 4" '
                'stroke-linecap="round" stroke-width="1.5"/>'
            )
        places = [f"{x(at):.1f} {height(value):.1f}" for at, value in line.points]
        if places:
            yield (
                f'<path d="M{"L".join(places)}" fill="none" stroke="{colour}" stroke-width="2" '
                f'stroke-linejoin="round"{dash(line.style)}/>'
            )
        for at, value in line.points:
            told = f"{line.label}, {said.get(at, f'{chart.axis} {at:g}')}: {value:.4g}"
            yield (
                f'<circle cx="{x(at):.1f}" cy="{height(value):.1f}" r="3" fill="{colour}">'
                f"<title>{escape(told)}</title></circle>"
            )
