"""Writes what the runs of `make results` gave into docs/results.md: tables between marks, curves, and CSV beside them.

Usage: python scripts/results.py RUNS_FOLDER

Tables are made from the CSV files in docs/results, which are made from the records of the runs; a test makes them
again, so a number in a table that no record has is found.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from progfed.experiments.small_messages import PAPERS
from progfed.report import make_report
from progfed.report.curves import AXES, Study
from progfed.report.extras import extras
from progfed.report.metric_figure import figure
from progfed.report.numbers import MISSING, amount, duration, percent, spread
from progfed.report.present import csv_bytes, flat, share_name
from progfed.report.tables import SHARES, reaches, rows

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results.md"
FOLDER = PAGE.parent / "results"


@dataclass(frozen=True)
class Section:
    """Some runs of an experiment that stand in one table, and the cost that their curves are drawn against."""

    experiment: str
    runs: tuple[str, ...]
    axis: str = "bytes"


SECTIONS = {
    "cifar10-published": Section("cifar10", ("published-end-to-end", "published", "published-equal-bytes")),
    "cifar10": Section("cifar10", ("end-to-end", "progressive", "restart", "warm-up", "equal-bytes")),
    "cifar10-published-codecs": Section(
        "cifar10",
        ("published-end-to-end", "published", "published-lq-8+sp-25-end-to-end", "published-lq-8+sp-25"),
    ),
    "cifar10-codecs": Section("cifar10", ("end-to-end", "lq-8+sp-25-end-to-end", "lq-8+sp-25", "lq-8+sp-25-restart")),
    "cifar10-strategies": Section(
        "cifar10", ("end-to-end", "progressive", "layerwise", "partial", "mixed", "random"), axis="flops"
    ),
    "writers": Section("writers", ("end-to-end", "progressive", "warm-up")),
    **{
        f"defaults-{task}": Section("defaults", (f"{task}-end-to-end", task, f"{task}-equal-bytes"))
        for task in ("cifar10", "writers", "residual", "speakers")
    },
    **{
        f"small-messages-{task}": Section(
            "small_messages", (f"{task}-end-to-end", task, *(f"{task}-{budget}" for budget in budgets))
        )
        for task, budgets in {
            "demo": ("2",),
            "hippocampus": ("2",),
            "cifar10": ("3", "2", "1.5"),
            "resnet18": ("2",),
        }.items()
    },
    "small-messages-codecs": Section(
        "small_messages",
        (
            "cifar10-end-to-end",
            *(f"cifar10-{name}-{ways}" for ways in ("up", "both") for name in PAPERS),
            *(f"cifar10-{budget}" for budget in ("3", "2", "1.5")),
        ),
    ),
    "defaults-cifar10-half": Section("defaults", ("cifar10-end-to-end", "cifar10", "cifar10-half")),
    "demo": Section("demo", ("end-to-end", "progressive", "progressive-equal-bytes", "small-messages")),
    "hippocampus-prior": Section(
        "hippocampus",
        (
            "prior-end-to-end",
            "prior-symmetric",
            "prior-asymmetric",
            "prior-asymmetric-half",
            "prior-equal-bytes",
        ),
    ),
    "hippocampus": Section(
        "hippocampus", ("end-to-end", "symmetric", "asymmetric", "asymmetric-half", "asymmetric-warm-up")
    ),
}


def study_of(section: Section, runs: Path) -> Study:
    """The section's runs, in the section's order, each with all its seeds."""
    folders = [folder for run in section.runs for folder in sorted((runs / section.experiment).glob(f"{run}-seed*"))]
    (study,) = make_report(folders).studies
    order = {run: place for place, run in enumerate(section.runs)}
    series = sorted(study.series, key=lambda one: order[one.first.name])
    return Study(study.experiment, tuple(series), study.notes)


def result_lines(path: Path) -> Iterator[str]:
    """The results in a CSV file as a Markdown table."""
    records = list(csv.DictReader(path.read_text().splitlines()))
    metric = "Dice" if "hippocampus" in path.name else "accuracy"
    yield f"| run | {metric}, % | seeds | bytes down, up | bytes | FLOPs | rounds | time |"
    yield "|---|---|---|---|---|---|---|---|"
    for record in records:
        deviation = float(record["metric_std"]) if record["metric_std"] else None
        cells = (
            f"`{record['run']}`",
            spread(float(record["metric_mean"]), deviation),
            record["seeds"].replace(" ", ", "),
            f"{amount(float(record['down_bytes']), 'B')}, {amount(float(record['up_bytes']), 'B')}",
            _share(record["relative_bytes"]),
            _share(record["relative_flops"]),
            record["rounds"],
            duration(float(record["seconds"])),
        )
        yield f"| {' | '.join(cells)} |"


def reach_lines(path: Path) -> Iterator[str]:
    """The bytes to reach shares of the baseline's best, from a CSV file, as a Markdown table."""
    records = list(csv.DictReader(path.read_text().splitlines()))
    yield f"| bytes, relative to the baseline, to reach | {' | '.join(map(share_name, SHARES))} |"
    yield f"|---{'|---' * len(SHARES)}|"
    for run in dict.fromkeys(record["run"] for record in records):
        own = {float(record["share"]): record["bytes_relative"] for record in records if record["run"] == run}
        yield f"| `{run}` | {' | '.join(_share(own[share]) for share in SHARES)} |"


def _share(text: str) -> str:
    return percent(float(text), 1) if text else MISSING


def tables() -> dict[str, str]:
    """Every table that the CSV files make, by the name of its mark."""
    made: dict[str, str] = {}
    for path in sorted(FOLDER.glob("*.csv")):
        lines = reach_lines(path) if path.stem.endswith("-reach") else result_lines(path)
        made[path.stem] = "\n".join(lines)
    return made


def filled(text: str) -> str:
    """The page with each table in its place: between `<!-- table NAME -->` and `<!-- end -->`."""
    for name, table in tables().items():
        text, found = re.subn(
            rf"(<!-- table {re.escape(name)} -->\n).*?(<!-- end -->)",
            lambda match, table=table: f"{match[1]}\n{table}\n\n{match[2]}",
            text,
            flags=re.DOTALL,
        )
        if not found:
            raise SystemExit(f"docs/results.md has no place for the table {name}")
    return text


def trained(section: Section, runs: Path) -> bool:
    """Whether all runs of a section are in the folder: sections that are not keep the tables they have."""
    return all(any((runs / section.experiment).glob(f"{run}-seed*/summary.json")) for run in section.runs)


def main(runs: Path) -> None:
    """Write the files and tables of every section whose runs are in the folder."""
    FOLDER.mkdir(exist_ok=True)
    text = PAGE.read_text()
    for name, section in SECTIONS.items():
        if not trained(section, runs):
            print(f"{name}: not all runs are in {runs}, so its table stays as it is")
            continue
        study = study_of(section, runs)
        axis = next(axis for axis in AXES if axis.name == section.axis)
        files = {f"{name}.svg": figure(study, axis).svg().encode()}
        for extra in extras(study):
            files |= {f"{name}-{file}": data for file, data in extra.files(()).items()}
        files = {file: data for file, data in files.items() if f"results/{file}" in text}
        files[f"{name}.csv"] = csv_bytes([flat(row) for row in rows(study)])
        if f"<!-- table {name}-reach -->" in text:
            files[f"{name}-reach.csv"] = csv_bytes([flat(reach) for reach in reaches(study)])
        for file, data in files.items():
            (FOLDER / file).write_bytes(data)
    PAGE.write_text(filled(text))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
