"""The same figures through matplotlib, for PDF and PNG; matplotlib is the extra `plots`."""

from __future__ import annotations

import io
from typing import Any

from progfed.errors import UsageError
from progfed.report.curves import Axis, Series, Study
from progfed.report.numbers import amount
from progfed.report.panels import Chart
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
    axes.set_xlabel(axis.title)
    axes.set_ylabel(f"{study.metric} (%)", parse_math=False)
    if axis.name in ("bytes", "flops"):
        axes.xaxis.set_major_formatter(formatter(lambda value, _: amount(value, axis.unit)))
    axes.set_xlim(left=0)
    _dressed(figure, axes, f"{study.title}: {study.metric} against {axis.title}")
    return _saved(figure, kind)


def plot_panels(chart: Chart, kind: str) -> bytes:
    """Lines in panels as the bytes of a PDF or PNG file."""
    figure_class, _ = _matplotlib()
    figure = figure_class(figsize=(7.6, 0.8 + 2.2 * len(chart.panels)), layout="constrained")
    for axes, panel in zip(
        figure.subplots(len(chart.panels), sharex=True, squeeze=False)[:, 0], chart.panels, strict=True
    ):
        for line in panel.lines:
            at, values = zip(*line.points, strict=True) if line.points else ((), ())
            style = "--" if line.style.dashed else "-"
            axes.plot(at, values, style, marker=".", color=line.style.colour, label=_shown(line.label))
            for border in line.borders:
                axes.axvline(border, color=line.style.colour, linestyle=":", linewidth=1)
        if panel.log:
            axes.set_yscale("log")
        axes.set_ylim(*panel.range)
        axes.set_yticks(panel.marks, [f"{mark:g}" for mark in panel.marks])
        axes.set_yticks([], minor=True)
        axes.set_ylabel(panel.name, parse_math=False)
    _dressed(figure, figure.axes[0], chart.title)
    figure.axes[-1].set_xlabel(chart.axis)
    figure.axes[-1].set_xticks([at for at, _ in chart.marks], [text for _, text in chart.marks])
    figure.axes[-1].set_xlim(*chart.reach)
    return _saved(figure, kind)


def _dressed(figure: Any, first: Any, title: str) -> None:
    """Title and legend at the first axes, and the same quiet frame around all."""
    first.set_title(title, loc="left", parse_math=False)
    for axes in figure.axes:
        axes.grid(axis="y", alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    if first.lines:
        for text in first.legend(frameon=False, fontsize="small").get_texts():
            text.set_parse_math(False)  # names come from files: a dollar sign is no formula


def _saved(figure: Any, kind: str) -> bytes:
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
