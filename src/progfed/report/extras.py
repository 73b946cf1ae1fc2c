"""Further figures of a report: the cost to reach a metric, and what `progfed analyse` has measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from progfed.report.curves import Study
from progfed.report.measured import alignment_chart, measured
from progfed.report.notes import notes
from progfed.report.numbers import plain_name
from progfed.report.page import Picture
from progfed.report.panels import Chart, drawn
from progfed.report.pictures import MISSING, Grid, available, budget_grid, draw, final_grid
from progfed.report.plots import written
from progfed.report.present import bar_chart, reach_chart
from progfed.report.svg import Drawing
from progfed.report.tables import reaches


@dataclass(frozen=True)
class Extra:
    """A further figure: its file name, how the page shows it, and the drawing or grid of pictures it is made from."""

    name: str
    picture: Picture
    grid: Grid | None = None
    drawing: Drawing | None = None

    def files(self, formats: Sequence[str]) -> dict[str, bytes]:
        """The figure as files by name: pictures as PNG, charts as SVG, and both in the formats asked for."""
        if self.drawing is not None:
            return {f"{self.name}.{kind}": written(self.drawing, kind) for kind in dict.fromkeys(("svg", *formats))}
        assert self.grid is not None
        others = [kind for kind in dict.fromkeys(formats) if kind != "png"]
        return {f"{self.name}.png": self.picture.png} | {
            f"{self.name}.{kind}": draw(self.grid, kind) for kind in others
        }


def extras(study: Study) -> tuple[Extra, ...]:
    """The further figures of an experiment, as far as its runs have what they need."""
    found = measured(study)
    made: list[Extra] = []
    for view in study.views:
        if reach := reach_chart(view, reaches(view)):
            made.append(_charted(f"reach-{plain_name(view.view)}" if view.view else "reach", reach))
    if bars := bar_chart(study, reaches(study)):
        made.append(_charted("bars", bars))
    if found.curves:
        made.append(_charted("discrepancy", alignment_chart(study, found.curves)))
    if found.segmented and available():
        grid = final_grid(study, found.segmented)
        made.append(Extra("slices", Picture("Test slices, segmented by the final models", png=draw(grid, "png")), grid))
        if budget := budget_grid(study, found.segmented):
            title = "The same within budgets of bytes, in shares of the baseline's"
            made.append(Extra("budgets", Picture(title, png=draw(budget, "png")), budget))
    return tuple(made)


def _charted(name: str, chart: Chart) -> Extra:
    drawing = drawn(chart)
    return Extra(name, Picture(svg=drawing.svg()), drawing=drawing)


def all_notes(study: Study) -> tuple[str, ...]:
    """The notes on an experiment, those on its measurements included."""
    found = measured(study)
    undrawn = [MISSING] if found.segmented and not available() else []
    return (*notes(study), *found.notes, *undrawn)
