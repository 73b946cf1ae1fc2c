"""Drawings as PDF and PNG files with the same shapes as in SVG, written by matplotlib (the extra `plots`)."""

from __future__ import annotations

import io
from typing import Any

from progfed.errors import UsageError
from progfed.report.svg import DASHED, Band, Bar, Curve, Dot, Drawing, Rule, Shape, Text

FORMATS = ("svg", "pdf", "png")
_DPI = 100  # a pixel of the drawing is a hundredth of an inch
_POINTS = 72 / _DPI  # a pixel, in the points that matplotlib measures lines and text by
_FINE = 2  # pixels of a PNG for each of the drawing


def check_format(name: str) -> None:
    """Refuse a format that is unknown, or that needs matplotlib where it is not installed."""
    if name not in FORMATS:
        raise UsageError(f"figures can be {', '.join(FORMATS)}, not {name!r}")
    if name != "svg":
        figure_class()


def written(drawing: Drawing, kind: str) -> bytes:
    """A drawing as the bytes of an svg, pdf or png file. The same drawing gives the same bytes."""
    if kind == "svg":
        return drawing.svg().encode()
    figure = figure_class()(figsize=(drawing.width / _DPI, drawing.height / _DPI), dpi=_DPI)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, drawing.width)
    axes.set_ylim(drawing.height, 0)  # a drawing counts downwards
    for order, shape in enumerate(drawing.shapes):
        _draw(axes, shape, order)
    return saved(figure, kind, dpi=_FINE * _DPI)


def saved(figure: Any, kind: str, *, dpi: float | str = "figure") -> bytes:
    """A figure of matplotlib as the bytes of a file; without a date, and with fixed names, equal figures are equal."""
    from matplotlib import rc_context

    file = io.BytesIO()
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    with rc_context({"svg.hashsalt": "progfed"}):
        figure.savefig(file, format=kind, dpi=dpi, metadata=metadata)
    return file.getvalue()


def _draw(axes: Any, shape: Shape, order: int) -> None:
    if isinstance(shape, Text):
        _text(axes, shape, order)
    elif isinstance(shape, Rule):
        x, y = zip(shape.start, shape.end, strict=True)
        _line(axes, x, y, shape.colour, shape.width, shape.dash, alpha=shape.opacity, zorder=order)
    elif isinstance(shape, Curve):
        x, y = zip(*shape.places, strict=True)
        _line(axes, x, y, shape.style.colour, shape.width, DASHED if shape.style.dashed else (), zorder=order)
    elif isinstance(shape, Band):
        axes.fill(*zip(*shape.places, strict=True), color=shape.colour, alpha=0.16, linewidth=0, zorder=order)
    elif isinstance(shape, Bar):
        box = {"width": shape.width, "color": shape.colour, "align": "edge", "zorder": order}
        axes.bar(shape.x, shape.height, bottom=shape.y, **box)
    else:
        _dot(axes, shape, order)


def _line(axes: Any, x: Any, y: Any, colour: str, width: float, dash: tuple[float, ...], **more: Any) -> None:
    # matplotlib counts dashes in widths of the line
    style = (0, tuple(length / width for length in dash)) if dash else "-"
    axes.plot(x, y, color=colour, linewidth=width * _POINTS, linestyle=style, dash_capstyle="round", **more)


def _dot(axes: Any, shape: Dot, order: int) -> None:
    size = {"markersize": 2 * shape.radius * _POINTS, "markeredgewidth": 0 if shape.filled else 1.5 * _POINTS}
    inside = shape.colour if shape.filled else "none"
    axes.plot(shape.x, shape.y, "o", color=shape.colour, markerfacecolor=inside, zorder=order, **size)


def _text(axes: Any, shape: Text, order: int) -> None:
    axes.text(
        shape.x,
        shape.y,
        shape.text,
        ha={"start": "left", "middle": "center", "end": "right"}[shape.anchor],
        va="baseline",
        rotation=90 if shape.upward else 0,
        rotation_mode="anchor",
        fontsize=shape.size * _POINTS,
        fontweight="bold" if shape.bold else "normal",
        color=shape.colour,
        parse_math=False,  # names come from files: a dollar sign is no formula
        zorder=order,
    )


def figure_class() -> Any:
    """matplotlib's class of figures, used without its global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("pictures, PDF and PNG figures need matplotlib: pip install 'progfed[plots]'") from error
    return Figure
