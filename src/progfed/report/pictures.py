"""Segmentations as pictures: input, truth and each run's labels, by the final models and within budgets of bytes."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from progfed.report.curves import Study
from progfed.report.measured import Segmented
from progfed.report.numbers import percent
from progfed.report.plots import figure_class, saved

BUDGETS = (0.0018, 0.094, 0.364)
"""Shares of the bytes of the whole baseline, as in Fig. 17 of the paper."""

MISSING = "pictures of segmentations need matplotlib: pip install 'progfed[plots]'"
_WIDTH, _LINE, _ABOVE = 1.7, 0.3, 0.45  # inches: a picture, the text below it, the headings
_LABELS = ("#e5690a", "#2f81f7", "#1a9f5a", "#a66df0", "#b08308")


@dataclass(frozen=True)
class Cell:
    """One place of a grid: an input or nothing, labels to draw over it, and a line of text below."""

    image: Tensor | None = None
    labels: Tensor | None = None
    text: str = ""


Grid = tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]]


def final_grid(study: Study, found: Sequence[Segmented]) -> Grid:
    """A row for each slice: input, truth, and the final model of each run with its bytes relative to the baseline."""
    first, baseline = found[0], _baseline(study, found)
    headings = ["input", "truth"]
    for one in found:
        share = f"\n{percent(one.sent(one.rounds[-1]) / baseline)} of bytes" if baseline else ""
        headings.append(one.series.label + share)
    rows = []
    for place, image in enumerate(first.slices["input"]):
        drawn = [one.slices[f"round-{one.rounds[-1]:05d}"][place] for one in found]
        rows.append((Cell(image), Cell(image, first.slices["truth"][place]), *(Cell(image, own) for own in drawn)))
    return tuple(headings), tuple(rows)


def budget_grid(study: Study, found: Sequence[Segmented]) -> Grid | None:
    """A row for each run: the first slice, segmented by the last model kept within each budget of bytes."""
    baseline = _baseline(study, found)
    if not baseline:
        return None
    image, truth = found[0].slices["input"][0], found[0].slices["truth"][0]
    rows = []
    for one in found:
        cells = []
        for share in BUDGETS:
            number = one.within(share * baseline)
            if number is None:
                cells.append(Cell(text="nothing this cheap"))
                continue
            text = f"round {number}, {percent(one.sent(number) / baseline)}"
            cells.append(Cell(image, one.slices[f"round-{number:05d}"][0], text))
        rows.append((Cell(image, text=one.series.label), *cells, Cell(image, truth)))
    return ("input", *(f"up to {100 * share:g} %" for share in BUDGETS), "truth"), tuple(rows)


def _baseline(study: Study, found: Sequence[Segmented]) -> float:
    """The bytes of the run that the others are compared with; 0 where it is not finished."""
    compared = [study.baseline(one.series) for one in found]
    return next((series.total("bytes") for series in compared if series and series.complete), 0.0)


def draw(grid: Grid, kind: str) -> bytes:
    """A grid of pictures as the bytes of a PNG, PDF or SVG file."""
    headings, rows = grid
    tall, wide = next(cell.image.shape for row in rows for cell in row if cell.image is not None)
    each = _WIDTH * tall / wide  # of a picture, in inches; a line of text stands below
    height = _ABOVE + (each + _LINE) * len(rows)
    figure = figure_class()(figsize=(1.03 * _WIDTH * len(headings), height))
    axes = figure.subplots(len(rows), len(headings), squeeze=False)
    places = {"left": 0.01, "right": 0.99, "bottom": _LINE / height, "top": 1 - _ABOVE / height}
    figure.subplots_adjust(**places, wspace=0.03, hspace=_LINE / each)
    for row, cells in enumerate(rows):
        for column, cell in enumerate(cells):
            _cell(axes[row][column], cell, (tall, wide))
            if row == 0:
                axes[row][column].set_title(headings[column], fontsize=9, parse_math=False)
    return saved(figure, kind, dpi=130)


def _cell(axes: Any, cell: Cell, shape: tuple[int, int]) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_frame_on(False)
    if cell.image is None:  # a place as large as a picture, with its text in the middle
        axes.imshow(np.zeros((*shape, 4), np.uint8))
        axes.text(0.5, 0.5, cell.text, fontsize=8, ha="center", transform=axes.transAxes, parse_math=False)
        return
    axes.set_xlabel(cell.text, fontsize=8, parse_math=False)
    axes.imshow(cell.image.numpy(), cmap="gray", interpolation="nearest")
    if cell.labels is not None:
        axes.imshow(coloured(cell.labels), interpolation="nearest")


def coloured(labels: Tensor) -> np.ndarray:
    """Labels as colours, `[height, width, red-green-blue-opacity]`; background is transparent."""
    palette = np.array([[0, 0, 0, 0], *([*bytes.fromhex(colour[1:]), 178] for colour in _LABELS)], np.uint8)
    numbers = labels.numpy().astype(int)
    return palette[np.where(numbers > 0, (numbers - 1) % len(_LABELS) + 1, 0)]


def available() -> bool:
    """Whether matplotlib is installed, which draws the pictures."""
    return importlib.util.find_spec("matplotlib") is not None
