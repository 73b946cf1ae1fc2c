"""`report.html`: one file that needs no network and no library; its tables and pictures need no script."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from progfed import __version__
from progfed.report.curves import AXES, Axis, Series, Study
from progfed.report.frontier import frontier
from progfed.report.metric_figure import figure, styles
from progfed.report.numbers import MISSING, spread
from progfed.report.present import Table, setting_tables
from progfed.report.svg import COLOURS

_EMPTY = ' class="none"'
_SHORT = {
    "bytes": "bytes",
    "flops": "FLOPs",
    "round": "rounds",
    "seconds": "seconds",
    "device_hours": "hours on devices",
}
_LEAD = "What each run learned, and what it cost: bytes on the wire, arithmetic, rounds and time."
_HINT = (
    "Move over a curve to read it; click a name to hide it. Dotted lines: the model grows. Open dots: warm-up rounds. "
    "Thin dashes: the best of all runs for so many bytes. "
    "Bands: one standard deviation over seeds."
)
_COLUMNS = (
    "Bytes are the lengths of the messages that were really sent, both directions, envelope included. Paper accounting "
    "is the published way to count: 4 bytes a parameter times the codec's nominal rate, uplink only, with warm-up "
    "billed as published. FLOPs are forward and backward of what was trained. Peak memory is that of one client's "
    "step on a whole batch: weights, gradients, optimizer and activations. Columns named “paper” are what the paper "
    "prints, at its full number of rounds. Metrics are those of the last round, averaged over seeds ± their standard "
    "deviation; “best” is that of the best round of the final model, since earlier stages have temporary heads. "
    "The area under a curve of means is divided by its width, the costs that a run and its baseline both cover, which "
    "makes it a mean metric. Shares of the baseline's best are shares of the highest point of its curve of means."
)


@dataclass(frozen=True)
class Picture:
    """A picture below the tables: an SVG document, or a PNG with its title."""

    title: str = ""
    svg: str = ""
    png: bytes = b""


@dataclass(frozen=True)
class Chapter:
    """What the page shows of one experiment."""

    study: Study
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    pictures: tuple[Picture, ...] = ()


def page(chapters: Sequence[Chapter], problems: Sequence[str]) -> str:
    """The whole page as HTML.

    Its security policy allows only its own style and script, so a name that comes from a file can do no harm.
    """
    assets = files("progfed.report") / "assets"
    template, style, script = (assets.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    panels = [panel for chapter in chapters for panel in chapter.study.charts]
    body = "\n".join(_chapter(number, chapter, panels) for number, chapter in enumerate(chapters))
    return Template(template).substitute(
        policy=f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:",
        title="progfed report",
        lead=escape(_LEAD),
        contents=_contents(chapters),
        body=body + _notes("What could not be read", problems),
        footer=f"{escape(_COLUMNS)} Written by progfed {escape(__version__)}.",
        style=style,
        script=script,
        data=embedded(panels),
    )


def embedded(panels: Sequence[Study]) -> str:
    """The curves as JSON that is safe inside a script element."""
    value = {"panels": [study_json(panel) for panel in panels]}
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def study_json(study: Study) -> dict[str, Any]:
    """The curves of a chart in the form in which the page's script draws them."""
    curves = []
    for series, style in zip(study.series, styles(study), strict=True):
        if series.points:
            curves.append(
                _curve(series, study.axes)
                | {"colour": COLOURS.index(style.colour), "dashed": style.dashed, "label": series.label}
            )
    axes = [{"name": axis.name, "title": axis.title, "short": _SHORT[axis.name]} for axis in study.axes]
    told = {"title": study.title, "metric": study.metric, "unit": study.unit, "hint": _HINT}
    front = [[one.bytes, one.metric] for one in frontier(study)]
    return {**told, "log_bytes": study.log_bytes, "axes": axes, "curves": curves, "frontier": front}


def _curve(series: Series, axes: Sequence[Axis]) -> dict[str, Any]:
    points = series.points
    return {
        "seeds": len(series.counted),
        "stage": [point.stage for point in points],
        "warmup": [point.warmup for point in points],
        "mean": [point.metric.mean for point in points],
        "std": [point.metric.std for point in points],
        **{axis.name: [point.at[axis.name] for point in points] for axis in axes},
        "borders": [{"stage": border.stage, "at": border.at} for border in series.borders],
    }


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _contents(chapters: Sequence[Chapter]) -> str:
    if len(chapters) < 2:
        return ""
    links = [f'<li><a href="#e{n}">{escape(chapter.study.experiment)}</a></li>' for n, chapter in enumerate(chapters)]
    return f'<nav aria-label="Experiments"><ul>{"".join(links)}</ul></nav>'


def _chapter(number: int, chapter: Chapter, panels: Sequence[Study]) -> str:
    study = chapter.study
    charts = "\n".join(_chart(panels.index(panel), panel) for panel in study.charts)
    tables = "\n".join(_table(table) for table in chapter.tables)
    pictures = "".join(_picture(picture) for picture in chapter.pictures)
    shown = study.paper.shown
    beside = f'<p class="hint">In the paper: {escape(shown)}.</p>\n' if shown else ""
    return (
        f'<section id="e{number}"><h2>{escape(study.experiment)}</h2>\n{beside}{charts}\n'
        f"{tables}\n{pictures}{_seeds(study)}{_settings(study)}"
        f"{_notes('What is missing or went wrong', chapter.notes)}</section>"
    )


def _chart(number: int, panel: Study) -> str:
    """A still picture, which the script replaces by a chart to explore."""
    name = ", ".join(word for word in (panel.part, panel.view) if word)
    heading = f"<h3>{escape(name)}</h3>" if name else ""
    empty = "<p>No round was evaluated yet.</p>"
    still = figure(panel, AXES[0]).svg() if any(series.points for series in panel.series) else empty
    return f'{heading}<div data-panel="{number}"><div class="plot">{still}</div></div>'


def _picture(picture: Picture) -> str:
    if picture.svg:
        return f'<div class="plot still">{picture.svg}</div>\n'
    title, data = escape(picture.title), base64.b64encode(picture.png).decode()
    return f'<h3>{title}</h3><img class="picture" alt="{title}" src="data:image/png;base64,{data}">\n'


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in table.headings)
    rows = "\n".join(_table_row(table.headings, row) for row in table.rows)
    return (
        f'<div class="scroll"><table><caption>{escape(table.title)}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
    )


def _table_row(headings: Sequence[str], row: Sequence[str]) -> str:
    cells = "".join(
        f'<td data-label="{escape(heading)}"{_EMPTY if cell == MISSING else ""}>{escape(cell)}</td>'
        for heading, cell in zip(headings[1:], row[1:], strict=True)
    )
    return f'<tr><th scope="row">{escape(row[0])}</th>{cells}</tr>'


def _seeds(study: Study) -> str:
    """A list of all folders with their seeds and results, folded."""
    rows = []
    for series in study.series:
        for run in series.runs:
            metric = spread(run.evaluated[-1].metric or 0.0, None, run.unit) if run.evaluated else MISSING
            state = "finished" if run.finished else f"{len(run.points)} of {run.planned} rounds"
            rows.append((series.label, str(run.seed), metric, state, run.folder))
    table = Table("Every seed", ("run", "seed", study.heading, "state", "folder"), tuple(rows))
    return f"<details><summary>Every seed and its folder</summary>{_table(table)}</details>"


def _settings(study: Study) -> str:
    """A list of the settings of every run, folded."""
    tables = "".join(_table(table) for table in setting_tables(study))
    return f'<details class="settings"><summary>Settings</summary>{tables}</details>' if tables else ""


def _notes(title: str, notes: Sequence[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<div class="notes"><h3>{escape(title)}</h3><ul>{items}</ul></div>'
