"""`progfed report`: what runs gave and what they cost, next to the paper's figures."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from progfed.report import Report, make_report, save_report
from progfed.report.present import Table

_WIDE = 240  # a pipe or a file has no width: nothing is folded there


def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Folders of runs, or folders above them.")],
    out: Annotated[Path | None, typer.Option(help="Where the report goes. Default: `report` in the first DIR.")] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="Figures as svg (always), pdf, png; may be repeated. pdf, png: extra `plots`."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Compare runs: tables next to the paper's, figures, CSV, and one self-contained report.html."""
    made = make_report(directories)
    written = save_report(made, out or directories[0] / "report", formats=formats or ("svg",))
    if as_json:
        print(json.dumps(made.as_json() | {"files": [str(path) for path in written]}, indent=2))
        return
    _show(made)
    for note in made.notes:
        print(f"note: {note}")
    print(f"report: {written[0]}")


def show_tables(directories: Iterable[Path]) -> None:
    """Print the tables of the runs in or below some folders."""
    _show(make_report(directories))


def _show(made: Report) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDE)
    for study in made.studies:
        for table in made.tables(study):
            console.print(_rich(table))
            console.print()


def _rich(table: Table) -> RichTable:
    """Names come from files: they are put in as text, so that brackets in them are no markup."""
    shown = RichTable(title=Text(table.title), title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, heading in enumerate(table.headings):
        shown.add_column(Text(heading), justify="right" if index else "left", vertical="bottom", overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(cell) for cell in row))
    return shown
