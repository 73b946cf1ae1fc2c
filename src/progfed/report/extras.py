"""What a report shows beside curves and tables: the measurements of `progfed analyse`, as figures and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from progfed.report.alignment import alignment_figure
from progfed.report.curves import Study
from progfed.report.measured import measured
from progfed.report.notes import notes
from progfed.report.page import Picture
from progfed.report.pictures import MISSING, Grid, available, budget_grid, draw, final_grid


@dataclass(frozen=True)
class Extra:
    """A figure of measurements: its name in files, as the page shows it, and the grid that it was drawn from."""

    name: str
    picture: Picture
    grid: Grid | None = None

    def files(self, formats: Sequence[str]) -> dict[str, bytes]:
        """Pictures as PNG and in the formats that were asked for; a figure as SVG."""
        if self.grid is None:
            return {f"{self.name}.svg": self.picture.svg.encode()}
        others = [kind for kind in dict.fromkeys(formats) if kind != "png"]
        return {f"{self.name}.png": self.picture.png} | {
            f"{self.name}.{kind}": draw(self.grid, kind) for kind in others
        }


def extras(study: Study) -> tuple[Extra, ...]:
    """The figures of what was measured of an experiment."""
    found = measured(study)
    made: list[Extra] = []
    if found.curves:
        made.append(Extra("discrepancy", Picture(svg=alignment_figure(study, found.curves))))
    if found.segmented and available():
        grid = final_grid(study, found.segmented)
        made.append(Extra("slices", Picture("Test slices, segmented by the final models", png=draw(grid, "png")), grid))
        if budget := budget_grid(study, found.segmented):
            title = "The same within budgets of bytes, in shares of the baseline's"
            made.append(Extra("budgets", Picture(title, png=draw(budget, "png")), budget))
    return tuple(made)


def all_notes(study: Study) -> tuple[str, ...]:
    """What is missing of an experiment, its measurements included."""
    found = measured(study)
    undrawn = [MISSING] if found.segmented and not available() else []
    return (*notes(study), *found.notes, *undrawn)
