"""`progfed report`: the results and costs of runs, next to the paper's figures."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from textwrap import wrap
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from progfed.cli.options import Json
from progfed.cli.output import print_json
from progfed.errors import printable
from progfed.report import Report, make_report, save_report
from progfed.report.present import Table

_WIDE = 240  # a pipe or a file has no width: nothing is folded there
_GAP = 2  # between columns


def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Folders of runs, or folders above them.")],
    out: Annotated[Path | None, typer.Option(help="Where the report goes. Default: `report` in the first DIR.")] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="Figures as svg (always), pdf, png; may be repeated. pdf, png: extra `plots`."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare runs: tables next to the paper's, figures, CSV, and one self-contained report.html."""
    made = make_report(directories)
    written = save_report(made, out or directories[0] / "report", formats=formats or ("svg",))
    if as_json:
        print_json(made.as_json() | {"files": [str(path) for path in written]})
        return
    _show(made)
    for note in made.notes:
        print(f"note: {printable(note)}")
    print(f"report: {printable(str(written[0]))}")


def show_tables(directories: Iterable[Path]) -> None:
    """Print the tables of the runs in or below some folders."""
    _show(make_report(directories))


def _show(made: Report) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDE)
    for study in made.studies:
        for table in made.tables(study):
            for piece in fitted(table, console.width):
                console.print(_rich(piece))
                console.print()


def fitted(table: Table, width: int) -> list[Table]:
    """A table divided into pieces, each with the first column, so that a narrow terminal folds no number."""
    columns = [(heading, [row[index] for row in table.rows]) for index, heading in enumerate(table.headings)]
    sizes = [max(map(len, [*heading.split(), *cells])) + _GAP for heading, cells in columns]
    pieces: list[list[int]] = []
    for index in range(1, len(columns)):
        room = width - sizes[0] - sum(sizes[one] for one in pieces[-1]) if pieces else -1
        if room >= sizes[index]:
            pieces[-1].append(index)
        else:
            pieces.append([index])
    return [
        Table(
            table.title if number == 0 else "",
            tuple(columns[index][0] for index in [0, *kept]),
            tuple(zip(*(columns[index][1] for index in [0, *kept]), strict=True)),
        )
        for number, kept in enumerate(pieces)
    ]


def _rich(table: Table) -> RichTable:
    """The table for the terminal. Names come from files: they are put in as text, so that brackets are no markup."""
    shown = RichTable(box=None, pad_edge=False)
    if table.title:
        shown.title, shown.title_justify, shown.title_style = Text(table.title), "left", "bold"
    for index, heading in enumerate(table.headings):
        width = max(map(len, [*heading.split(), *(row[index] for row in table.rows)]))
        folded = Text("\n".join(wrap(heading, width)))
        shown.add_column(folded, justify="right" if index else "left", vertical="bottom", no_wrap=index > 0)
    for row in table.rows:
        shown.add_row(*(Text(cell) for cell in row))
    return shown
