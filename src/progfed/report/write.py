"""Writes a report: from folders of runs to a page, figures and tables in files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from progfed.errors import StorageError
from progfed.files import replace_file
from progfed.report.ablation import ablation_tables
from progfed.report.collect import Found, collect
from progfed.report.curves import Study, studies
from progfed.report.extras import all_notes, extras
from progfed.report.measured import alignment_table, measured
from progfed.report.metric_figure import figure
from progfed.report.numbers import plain_name
from progfed.report.page import Chapter, page
from progfed.report.per_stage import stage_costs
from progfed.report.plots import check_format, written
from progfed.report.present import (
    Table,
    area_table,
    csv_bytes,
    flat,
    frontier_table,
    reach_table,
    result_table,
    stage_table,
)
from progfed.report.tables import reaches, rows

_DRAWN = ("bytes", "round", "flops", "device_hours")
"""The costs that the figures in files are drawn against."""


@dataclass(frozen=True)
class Report:
    """Everything that a report shows: the runs by experiment, and a sentence for each file that cannot be read."""

    studies: tuple[Study, ...]
    problems: tuple[str, ...]

    def tables(self, study: Study) -> tuple[Table, ...]:
        """The tables of an experiment as text."""
        more = (
            *(frontier_table(panel) for panel in study.panels),
            stage_table(study, stage_costs(study)),
            *(area_table(view, rows(view)) for view in study.views),
            *(reach_table(view, reaches(view)) for view in study.views),
            *ablation_tables(study),
            alignment_table(study, measured(study).curves),
        )
        return (result_table(study, rows(study)), *(table for table in more if table))

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each thing that is missing, over all experiments."""
        return (
            *self.problems,
            *(f"{study.experiment}: {note}" for study in self.studies for note in all_notes(study)),
        )

    def as_json(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {
            "experiments": [
                {
                    "experiment": study.experiment,
                    "metric": study.metric,
                    "unit": study.unit,
                    "metrics": _metric_records(study),
                    "paper": study.paper.shown,
                    "settings": {series.label: dict(series.first.readable) for series in study.series},
                    "runs": [flat(row) for row in rows(study)],
                    "stages": [flat(cost) for cost in stage_costs(study)],
                    "reach": [flat(reach) for reach in reaches(study)],
                }
                for study in self.studies
            ],
            "missing": list(self.notes),
        }


def _metric_records(study: Study) -> list[dict[str, Any]]:
    """Every metric of every run, the last and the best, as plain values."""
    found = []
    for view in study.views:
        for row, series in zip(rows(view), view.series, strict=True):
            values = {key: value for key, value in flat(row).items() if key.startswith(("metric_", "best_"))}
            about = {"metric": series.first.metric, "unit": series.first.unit}
            higher = {"higher_is_better": series.first.higher_is_better}
            found.append({"experiment": study.experiment, "run": row.run, **about, **higher, **values})
    return found


def make_report(directories: Iterable[Path | str]) -> Report:
    """Read the runs in or below some folders."""
    found: Found = collect(directories)
    return Report(studies(found), found.problems)


def write_report(
    directories: Iterable[Path | str], out: Path | str, *, formats: Sequence[str] = ("svg",)
) -> tuple[Path, ...]:
    """Write a report on the runs in or below some folders: `report.html`, the tables as CSV, and the figures.

    Args:
        directories: Folders of runs, or folders that contain them.
        out: The folder to write to.
        formats: Formats of figures beside SVG, which is always written: `pdf` and `png`, which need matplotlib.

    Returns:
        The paths of the files, the page first.
    """
    return save_report(make_report(directories), Path(out), formats=formats)


def save_report(report: Report, out: Path, *, formats: Sequence[str] = ("svg",)) -> tuple[Path, ...]:
    """Write a report that `make_report` made; each file is written whole or not at all."""
    for kind in formats:
        check_format(kind)
    files = contents(report, formats)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            replace_file(out / name, data)
    except OSError as error:
        raise StorageError(f"{out} cannot be written ({error.strerror}): choose another folder with --out") from error
    return tuple(out / name for name in files)


def contents(report: Report, formats: Sequence[str]) -> dict[str, bytes]:
    """The files of a report by name; the page comes first."""
    more = [extras(study) for study in report.studies]
    chapters = [
        Chapter(study, report.tables(study), all_notes(study), tuple(extra.picture for extra in found))
        for study, found in zip(report.studies, more, strict=True)
    ]
    files = {"report.html": page(chapters, report.problems).encode()}
    results = [{"experiment": study.experiment, **flat(row)} for study in report.studies for row in rows(study)]
    files["results.csv"] = csv_bytes(results)
    staged = [{"experiment": study.experiment, **flat(cost)} for study in report.studies for cost in stage_costs(study)]
    if staged:
        files["stages.csv"] = csv_bytes(staged)
    reached = [{"experiment": study.experiment, **flat(reach)} for study in report.studies for reach in reaches(study)]
    if reached:
        files["reach.csv"] = csv_bytes(reached)
    if any(len(study.views) > 1 for study in report.studies):
        files["metrics.csv"] = csv_bytes([record for study in report.studies for record in _metric_records(study)])
    panels = [panel for study in report.studies for panel in study.charts]
    for panel, name in zip(panels, _slugs([f"{panel.title} {panel.view}" for panel in panels]), strict=True):
        for axis in (axis for axis in panel.axes if axis.name in _DRAWN):
            drawing = figure(panel, axis)
            for kind in dict.fromkeys(("svg", *formats)):
                files[f"{name}-{axis.name}.{kind}"] = written(drawing, kind)
    for name, found in zip(_slugs([study.experiment for study in report.studies]), more, strict=True):
        for extra in found:
            files |= {f"{name}-{file}": data for file, data in extra.files(formats).items()}
    return files


def _slugs(names: Sequence[str]) -> list[str]:
    """File names for experiments, each of them once."""
    found: list[str] = []
    for name in names:
        taken, number = plain_name(name), 2
        while taken in found:
            taken, number = f"{plain_name(name)}-{number}", number + 1
        found.append(taken)
    return found
