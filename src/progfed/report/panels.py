"""Charts of lines or bars, in panels one below the other: as values, and drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from progfed.report.numbers import MISSING, ticks
from progfed.report.svg import COLOURS, DOTTED, Bar, Curve, Dot, Drawing, Rule, Scale, Shape, Style, Text, legend

WIDTH, LEFT, RIGHT, GAP, TOP, BOTTOM = 760, 62, 20, 44, 48, 52
_TALL, _FLAT = 170, 110  # a panel of lines, and one of bars
_BAR = 0.62  # of the distance between two bars
_SMALL = 11.5


@dataclass(frozen=True)
class Line:
    """A line with a dot at each of its points, and dotted vertical lines at its `borders`."""

    label: str
    style: Style
    points: tuple[tuple[float, float], ...]
    borders: tuple[float, ...] = ()


@dataclass(frozen=True)
class Panel:
    """Lines over the same axes; the vertical axis contains at least the values `within`, and may be logarithmic."""

    name: str
    lines: tuple[Line, ...]
    within: tuple[float, float]
    log: bool = False

    @property
    def range(self) -> tuple[float, float]:
        """The range of the vertical axis: from the least value to the largest, and a little more."""
        values = [value for line in self.lines for _, value in line.points] + list(self.within)
        low, high = min(values), max(values)
        return (low, high * (high / low) ** 0.05) if self.log else (low, high + 0.05 * (high - low))

    @property
    def marks(self) -> list[float]:
        """The values that are written at the vertical axis."""
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
    """Panels that share a horizontal axis.

    The axis shows numbers, or the `names` at 0, 1, 2, … where there are any. With `bars` every panel has one line,
    whose name is its title and whose points are bars from 0; the bar at the last name is orange, as in the paper.
    """

    title: str
    axis: str
    panels: tuple[Panel, ...]
    names: tuple[str, ...] = ()
    bars: bool = False

    @property
    def reach(self) -> tuple[float, float]:
        """The range of the horizontal axis."""
        if self.names:
            return (-0.5, len(self.names) - 0.5) if self.bars else (-0.3, len(self.names) - 0.7)
        return 0.0, max((at for panel in self.panels for line in panel.lines for at, _ in line.points), default=1.0)

    @property
    def height(self) -> int:
        """The height of a panel, in pixels."""
        return _FLAT if self.bars else _TALL

    @property
    def marks(self) -> list[tuple[float, str]]:
        """The positions at the horizontal axis where something is written, and what."""
        return [*enumerate(self.names)] or [(mark, f"{mark:g}") for mark in ticks(*self.reach)]


def drawn(chart: Chart) -> Drawing:
    """A chart as a drawing: the title, the lines' names, the panels, and below them the axis that they share."""
    named = dict.fromkeys((line.label, line.style) for panel in chart.panels for line in panel.lines)
    names, height = legend(() if chart.bars else named, left=LEFT, top=TOP, right=WIDTH - 10)
    top = TOP + height + 18
    bottom = top + len(chart.panels) * (chart.height + GAP) - GAP
    x = Scale(*chart.reach, LEFT, WIDTH - RIGHT)
    shapes = [Text(LEFT, 24, chart.title, size=16, bold=True), *names]
    for number, panel in enumerate(chart.panels):
        shapes += _panel(panel, chart, x, top + number * (chart.height + GAP))
    shapes += [Text(x(at), bottom + 20, text, "middle") for at, text in chart.marks]
    shapes.append(Text((x.start + x.end) / 2, bottom + 42, chart.axis, "middle"))
    return Drawing(chart.title, WIDTH, bottom + BOTTOM, tuple(shapes))


def _panel(panel: Panel, chart: Chart, x: Scale, top: float) -> Iterator[Shape]:
    low, high = panel.range
    bottom = top + chart.height

    def height(value: float) -> float:
        place = math.log(value / low) / math.log(high / low) if panel.log else (value - low) / (high - low)
        return bottom - chart.height * place

    for mark in panel.marks:
        yield Rule((LEFT, height(mark)), (x.end, height(mark)), opacity=0.25)
        yield Text(LEFT - 8, height(mark) + 4.5, f"{mark:g}", "end")
    yield Text(16, (top + bottom) / 2, panel.name, "middle", upward=True)
    said = dict(chart.marks) if chart.names else {}
    for line in panel.lines:
        for border in line.borders:
            yield Rule((x(border), top), (x(border), bottom), line.style.colour, width=1.5, dash=DOTTED)
        if chart.bars:
            yield Text(LEFT, top - 8, line.label, bold=True)
            yield from _bars(line, chart, x, height)
        elif line.points:
            yield Curve(tuple((x(at), height(value)) for at, value in line.points), line.style, width=2)
            for at, value in line.points:
                title = f"{line.label}, {said.get(at, f'{chart.axis} {at:g}')}: {value:.4g}"
                yield Dot(x(at), height(value), 3, line.style.colour, title=title)


def _bars(line: Line, chart: Chart, x: Scale, height: Callable[[float], float]) -> Iterator[Shape]:
    """A bar for each point with its value above; a dash where there is no value."""
    values, half = dict(line.points), _BAR * (x(1) - x(0)) / 2
    for at, name in enumerate(chart.names):
        value = values.get(at)
        if value is None:
            yield Text(x(at), height(0) - 5, MISSING, "middle")
            continue
        colour = COLOURS[1] if at == len(chart.names) - 1 else COLOURS[0]
        tall = height(0) - height(value)
        title = f"{line.label}, {name}: {value:.4g}"
        yield Bar(x(at) - half, height(value), 2 * half, tall, colour, title)
        yield Text(x(at), height(value) - 4, f"{value:.3g}", "middle", size=_SMALL)
