"""The same figures through matplotlib, for PDF and PNG; matplotlib is the extra `plots`."""

from __future__ import annotations

import io
from typing import Any

from progfed.errors import UsageError
from progfed.report.curves import Axis, Series, Study
from progfed.report.numbers import amount
from progfed.report.svg import Style, styles

FORMATS = ("svg", "pdf", "png")


def check_format(name: str) -> None:
    """Refuse a format that is unknown, or that cannot be written here."""
    if name not in FORMATS:
        raise UsageError(f"figures can be {', '.join(FORMATS)}, not {name!r}")
    if name != "svg":
        _matplotlib()


def plot(study: Study, axis: Axis, kind: str) -> bytes:
    """The metric of every run of an experiment against a cost, as the bytes of a PDF or PNG file."""
    figure_class, formatter = _matplotlib()
    figure = figure_class(figsize=(7.6, 4.4), layout="constrained")
    axes = figure.subplots()
    for series, style in zip(study.series, styles(study), strict=True):
        if series.points:
            _draw(axes, series, style, axis)
    axes.set_title(f"{study.title}: {study.metric} against {axis.title}", loc="left", parse_math=False)
    axes.set_xlabel(axis.title)
    axes.set_ylabel(f"{study.metric} (%)", parse_math=False)
    if axis.name in ("bytes", "flops"):
        axes.xaxis.set_major_formatter(formatter(lambda value, _: amount(value, axis.unit)))
    axes.set_xlim(left=0)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines:
        for text in axes.legend(frameon=False, fontsize="small").get_texts():
            text.set_parse_math(False)  # names come from files: a dollar sign is no formula
    file = io.BytesIO()
    # without a date the same records give the same file
    figure.savefig(file, format=kind, dpi=160, metadata={"CreationDate": None} if kind == "pdf" else None)
    return file.getvalue()


def _draw(axes: Any, series: Series, style: Style, axis: Axis) -> None:
    at = [point.at[axis.name] for point in series.points]
    mean = [point.metric.mean for point in series.points]
    axes.plot(at, mean, color=style.colour, linestyle="--" if style.dashed else "-", label=_shown(series.label))
    if len(series.counted) > 1:
        low = [point.metric.mean - (point.metric.std or 0) for point in series.points]
        high = [point.metric.mean + (point.metric.std or 0) for point in series.points]
        axes.fill_between(at, low, high, color=style.colour, alpha=0.16, linewidth=0)
    for border in series.borders:
        axes.axvline(border.at[axis.name], color=style.colour, linestyle=":", linewidth=1)
    warm = [point for point in series.points if point.warmup]
    axes.plot(
        [point.at[axis.name] for point in warm],
        [point.metric.mean for point in warm],
        linestyle="none",
        marker="o",
        markerfacecolor="none",
        color=style.colour,
    )


def _shown(label: str) -> str:
    """matplotlib leaves labels that begin with an underscore out of the legend."""
    return f" {label}" if label.startswith("_") else label


def _matplotlib() -> tuple[Any, Any]:
    """What is needed of matplotlib, without its global state."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter
    except ImportError as error:
        raise UsageError("PDF and PNG figures need matplotlib: pip install 'progfed[plots]'") from error
    return Figure, FuncFormatter
