"""Drawings: a list of shapes, written as SVG without any library, readable on white and on dark backgrounds.

Every figure is drawn once, as such a list; `plots` writes the same list as PDF and PNG.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

# every colour stands out at least 3:1 from white and from the near-black of a dark page
COLOURS = ("#2f81f7", "#e5690a", "#1a9f5a", "#a66df0", "#b08308", "#df4b94", "#128fa8", "#7d8590")
INK = "#76808b"
_FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
SIZE = 13  # of text, in pixels

Places = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Style:
    """How a curve is drawn: its colour, and whether it is dashed."""

    colour: str
    dashed: bool


@dataclass(frozen=True)
class Text:
    """A line of text.

    `anchor` says which end of it is at x: start, middle or end; `upward` text reads from bottom to top.
    """

    x: float
    y: float
    text: str
    anchor: str = "start"
    size: float = SIZE
    bold: bool = False
    colour: str = INK
    upward: bool = False


@dataclass(frozen=True)
class Rule:
    """A straight line; `dash` gives the lengths of dashes and gaps in pixels."""

    start: tuple[float, float]
    end: tuple[float, float]
    colour: str = INK
    width: float = 1
    opacity: float = 1
    dash: tuple[float, ...] = ()


@dataclass(frozen=True)
class Curve:
    """A line through points."""

    places: Places
    style: Style
    width: float = 2.25


@dataclass(frozen=True)
class Band:
    """A pale area inside an outline."""

    places: Places
    colour: str


@dataclass(frozen=True)
class Dot:
    """A point, filled or open; `title` is shown when a pointer rests on it."""

    x: float
    y: float
    radius: float
    colour: str
    filled: bool = True
    title: str = ""


@dataclass(frozen=True)
class Bar:
    """A filled rectangle, from its upper left corner; `title` is shown when a pointer rests on it."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    title: str = ""


Shape = Text | Rule | Curve | Band | Dot | Bar
DASHED = (7.0, 5.0)
DOTTED = (1.0, 4.0)


@dataclass(frozen=True)
class Drawing:
    """Shapes in pixels from the upper left corner, the first at the back."""

    title: str
    width: int
    height: int
    shapes: tuple[Shape, ...]

    def svg(self) -> str:
        """The drawing as an SVG document."""
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" font-family="{_FONT}" font-size="{SIZE}" fill="{INK}">',
            f"<title>{escape(self.title)}</title>",
            *map(_written, self.shapes),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Scale:
    """A map of a range of values to a range of pixels: linear, or logarithmic, where both ends are above 0."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        if self.log:
            reach = math.log(self.high / self.low) or 1
            return self.start + math.log(max(value, self.low) / self.low) / reach * (self.end - self.start)
        return self.start + (value - self.low) / ((self.high - self.low) or 1) * (self.end - self.start)


def legend(names: Iterable[tuple[str, Style]], *, left: int, top: int, right: int) -> tuple[list[Shape], int]:
    """Names in their colours, in as many lines as they need.

    Returns:
        The shapes, and the height of the lines after the first.
    """
    shapes: list[Shape] = []
    x, y = left, top
    for name, style in names:
        width = 34 + 7.4 * len(name)
        if x > left and x + width > right:
            x, y = left, y + 20
        shapes.append(Rule((x, y - 4), (x + 18, y - 4), style.colour, width=3, dash=DASHED if style.dashed else ()))
        shapes.append(Text(x + 25, y, name))
        x += round(width + 10)
    return shapes, y - top


def _written(shape: Shape) -> str:
    if isinstance(shape, Text):
        return _text(shape)
    if isinstance(shape, Rule):
        opacity = f' stroke-opacity="{shape.opacity:g}"' if shape.opacity < 1 else ""
        return f'<path d="{_path((shape.start, shape.end))}"{_stroke(shape.colour, shape.width, shape.dash)}{opacity}/>'
    if isinstance(shape, Curve):
        stroke = _stroke(shape.style.colour, shape.width, DASHED if shape.style.dashed else ())
        return f'<path d="{_path(shape.places)}" fill="none"{stroke} stroke-linejoin="round"/>'
    if isinstance(shape, Band):
        return f'<path d="{_path(shape.places)}Z" fill="{shape.colour}" fill-opacity=".16"/>'
    title = f"<title>{escape(shape.title)}</title>" if shape.title else ""
    if isinstance(shape, Bar):
        place = f'x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" height="{shape.height:.1f}"'
        return f'<rect {place} fill="{shape.colour}">{title}</rect>'
    look = f'fill="{shape.colour}"' if shape.filled else f'fill="none" stroke="{shape.colour}" stroke-width="1.5"'
    return f'<circle cx="{shape.x:.1f}" cy="{shape.y:.1f}" r="{shape.radius:g}" {look}>{title}</circle>'


def _text(shape: Text) -> str:
    x, y = f"{shape.x:.1f}", f"{shape.y:.1f}"
    looks = {
        "text-anchor": "" if shape.anchor == "start" else shape.anchor,
        "font-size": "" if shape.size == SIZE else f"{shape.size:g}",
        "font-weight": "600" if shape.bold else "",
        "fill": "" if shape.colour == INK else shape.colour,
    }
    place = f'transform="translate({x} {y}) rotate(-90)"' if shape.upward else f'x="{x}" y="{y}"'
    more = "".join(f' {name}="{value}"' for name, value in looks.items() if value)
    return f"<text {place}{more}>{escape(shape.text)}</text>"


def _path(places: Places) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def _stroke(colour: str, width: float, dash: tuple[float, ...]) -> str:
    dashed = f' stroke-dasharray="{" ".join(f"{length:g}" for length in dash)}"' if dash else ""
    return f' stroke="{colour}" stroke-width="{width:g}" stroke-linecap="round"{dashed}'
