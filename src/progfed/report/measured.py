"""What `progfed analyse` has measured of the runs of an experiment: alignment and discrepancy, and segmentations."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from progfed.analysis import discrepancy, slices
from progfed.analysis.discrepancy import Discrepancy
from progfed.errors import StorageError
from progfed.report.collect import Run
from progfed.report.curves import Series, Study
from progfed.report.metric_figure import styles
from progfed.report.numbers import MISSING
from progfed.report.panels import Chart, Line, Panel
from progfed.report.present import Table
from progfed.tensors import Tensors

Curves = Sequence[tuple[Series, tuple[Discrepancy, ...]]]
"""What was measured of each run."""


@dataclass(frozen=True)
class Segmented:
    """The segmented slices of one seed of a run."""

    series: Series
    run: Run
    slices: Tensors

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds whose models segmented the slices."""
        names = sorted(name for name in self.slices if name.startswith("round-"))
        return tuple(int(name.removeprefix("round-")) for name in names)

    def sent(self, number: int) -> int:
        """The bytes that the run had sent after a round."""
        return self.run.points[number - 1].bytes

    def within(self, budget: float) -> int | None:
        """The last of these rounds before the run had sent more bytes than the budget; None if there is none.

        If only one model was kept, its round is returned whatever the budget is.
        """
        if len(self.rounds) == 1:
            return self.rounds[0]
        return max((number for number in self.rounds if self.sent(number) <= budget), default=None)


@dataclass(frozen=True)
class Measured:
    """The measurements of an experiment by run, and a sentence for each that is missing or cannot be read."""

    curves: tuple[tuple[Series, tuple[Discrepancy, ...]], ...]
    segmented: tuple[Segmented, ...]
    notes: tuple[str, ...]


def measured(study: Study) -> Measured:
    """Read what `progfed analyse` wrote for each run of an experiment: of each, the first seed that was analysed."""
    notes: list[str] = []
    curves: list[tuple[Series, tuple[Discrepancy, ...]]] = []
    segmented: list[Segmented] = []
    for series in study.series:
        for run in series.counted:
            try:
                found, drawn = discrepancy.read(run.path), slices.read(run.path)
            except StorageError as error:
                notes.append(str(error))
                continue
            known = {point.round for point in run.points}
            if found and {one.round for one in found} <= known:
                curves.append((series, found))
            one = Segmented(series, run, drawn)
            if one.rounds and set(one.rounds) <= known and _alike(one, segmented):
                segmented.append(one)
            if found or drawn:
                break
    if study.paper.discrepancy and not curves:
        notes.append("alpha and q are not measured: train with --keep N, then `progfed analyse` on the same folders")
    notes += _missing(study, segmented)
    return Measured(tuple(curves), tuple(segmented), tuple(notes))


def _alike(one: Segmented, others: Sequence[Segmented]) -> bool:
    """Whether these are the same slices as the others': only then can they be shown side by side."""
    return all(torch.equal(one.slices[name], other.slices[name]) for other in others[:1] for name in ("input", "truth"))


def _missing(study: Study, segmented: list[Segmented]) -> list[str]:
    """A sentence for each picture of segmentations that cannot be shown."""
    if not any(series.first.metric == "dice" and series.complete for series in study.series):
        return []
    if not segmented:
        return ["no pictures of segmentations: `progfed analyse` on the same folders makes them"]
    final = [one.series.label for one in segmented if len(one.rounds) == 1]
    if not final:
        return []
    return [f"no models from before the end, so pictures at a budget show the final one (--keep N): {', '.join(final)}"]


def alignment_table(study: Study, curves: Curves) -> Table | None:
    """alpha_t and q_t of each run in each stage, as means and extremes; None where nothing was measured."""
    cells = []
    for series, found in curves:
        for stage in sorted({one.stage for one in found}):
            own = [one for one in found if one.stage == stage]
            alphas = [one.alpha for one in own if one.alpha is not None]
            qs = [one.q for one in own if one.q is not None]
            shown = (_show(statistics.fmean, alphas), _show(min, alphas), _show(statistics.fmean, qs), _show(max, qs))
            cells.append((series.label, str(stage), str(len(own)), *shown))
    if not cells:
        return None
    headings = ("run", "stage", "models", "alpha, mean", "alpha, least", "q, mean", "q, largest")
    return Table(f"{study.experiment}: alignment and norm discrepancy (Theorem 3.3)", headings, tuple(cells))


def alignment_chart(study: Study, curves: Curves) -> Chart:
    """alpha_t, and below it q_t on a logarithmic axis, against rounds.

    Dotted lines mark the last model before each growth.
    """
    found = dict(zip((series.label for series in study.series), styles(study), strict=True))

    def lines(name: str) -> tuple[Line, ...]:
        return tuple(
            Line(
                series.label,
                found[series.label],
                tuple((one.round, value) for one in measured if (value := getattr(one, name)) is not None),
                _borders(measured),
            )
            for series, measured in curves
        )

    panels = (Panel("alpha", lines("alpha"), (0.0, 1.0)), Panel("q", lines("q"), (1.0, 1.25), log=True))
    return Chart(f"{study.title}: alignment and norm discrepancy", "rounds", panels)


def _borders(found: Sequence[Discrepancy]) -> tuple[float, ...]:
    last = {one.stage: one.round for one in found}
    return tuple(last[stage] for stage in sorted(last)[:-1])


def _show(summary: object, values: Sequence[float]) -> str:
    return f"{summary(values):.4g}" if values and callable(summary) else MISSING
