"""`progfed data`: what each data set needs, whether it is there and intact, how to get it, who holds which labels."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table

from progfed.cli.options import Json, console, existing_folder
from progfed.cli.output import print_json
from progfed.cli.user_model import named
from progfed.data.catalog import CATALOG, find, load
from progfed.data.fetch import fetch
from progfed.data.inventory import DataSet, Found, check, locate
from progfed.errors import DataError, ProgfedError, UsageError
from progfed.experiments import loaded
from progfed.population import FederatedData
from progfed.report.labels import draw_labels, label_counts, spread
from progfed.runs.experiment import Experiment

app = typer.Typer(
    no_args_is_help=True, help="Data sets: list them, check them, fetch them, show who holds which labels."
)

Root = Annotated[
    Path,
    typer.Option(
        "--data", envvar="PROGFED_DATA", help="The folder that holds the data sets.", callback=existing_folder
    ),
]
Names = Annotated[list[str] | None, typer.Argument(help="Data sets by name; all of them when none is given.")]
_HERE = Path("data")
_BARS = " ▁▂▃▄▅▆▇█"


@app.command("list")
def list_(data: Root = _HERE, as_json: Json = False) -> None:
    """What each data set is, which files it needs, and whether they are there (nothing is read)."""
    rows = [_described(one, locate(one, data), data) for one in CATALOG]
    if as_json:
        print_json(rows)
        return
    table = _table("name", "state", "size", "what", "terms")
    for row in rows:
        table.add_row(row["name"], row["state"], row["size"], row["title"], row["terms"])
    _print(table)


@app.command("check")
def check_(names: Names = None, data: Root = _HERE, as_json: Json = False) -> None:
    """Whether the files are there and intact: hashes where they are published, else by reading every example.

    Ends with exit code 3 when a data set is damaged, or when one that was named is missing.
    """
    found = [check(one, data) for one in _chosen(names)]
    if as_json:
        print_json([asdict(one) for one in found])
    else:
        table = _table("name", "state", "detail")
        for one in found:
            table.add_row(one.name, one.state, one.detail)
        _print(table)
    bad = [one for one in found if one.state == "damaged" or (names and one.state == "missing")]
    if bad:
        raise DataError("; ".join(f"{one.name} is {one.state}: {one.detail}" for one in bad))


@app.command("fetch")
def fetch_(
    name: Annotated[str, typer.Argument(help="The data set to get.")],
    data: Root = _HERE,
    source: Annotated[
        Path | None, typer.Option("--from", help="Take the files from this folder, not the network.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Get a data set: download or copy, verify, and only then put it in place; what is intact is left alone."""
    one = find(name)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), disable=as_json or not sys.stderr.isatty()) as bars:
        tasks: dict[str, Any] = {}

        def progress(file: str, done: int, total: int | None) -> None:
            task = tasks.get(file)
            if task is None:
                task = tasks[file] = bars.add_task(file)
            bars.update(task, completed=done, total=total)

        placed = fetch(one, data, source=source, progress=progress)
    if as_json:
        print_json({"name": name, "placed": [str(path) for path in placed]})
    elif placed:
        typer.echo(f"{name}: {len(placed)} files in {data}")
    else:
        typer.echo(f"{name} is already there and intact")


@app.command("show")
def show_(
    name: Annotated[str, typer.Argument(help="The data set to show, or FILE.py:NAME of your own.")],
    data: Root = _HERE,
    clients: Annotated[int | None, typer.Option(help="Share the examples among this many clients.")] = None,
    partition: Annotated[
        str | None, typer.Option(help="iid, shards:N, dirichlet:ALPHA, pachinko, institution.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The seed of the partition.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many clients, evenly spaced.")] = 100,
    out: Annotated[Path | None, typer.Option(help="Draw a picture to this .svg, .png or .pdf file.")] = None,
    as_json: Json = False,
) -> None:
    """Who holds which labels: a table of the clients, and a picture with --out."""
    if ".py:" in name:
        population = _users_own(name, data, given=(clients, partition, seed))
    else:
        population = load(name, data, clients=clients, partition=partition, seed=seed)
    shown = spread(population.clients, limit)
    counts = label_counts(population, shown)
    if out is not None:
        title = f"{name}: {population.clients:,} clients" + (f", {partition}" if partition else "")
        draw_labels(counts, out, clients=shown, title=title)
    if as_json:
        print_json(_distribution(population, shown, counts, out))
        return
    _print(_drawn(population, shown, counts))
    if out is not None:
        typer.echo(f"picture: {out}")


def _users_own(target: str, root: Path, *, given: tuple[object, ...]) -> FederatedData:
    """The population in `FILE:NAME`: data, a function that makes them of the data folder, or an experiment's."""
    if any(option is not None for option in given):
        raise UsageError(f"{target} has the clients it came with: leave out --clients, --partition and --seed")
    path, _, name = target.rpartition(":")
    value = named(loaded(Path(path)), name, target)
    try:
        made = value.make_data(root) if isinstance(value, Experiment) else value(root) if callable(value) else value
    except ProgfedError:
        raise
    except Exception as error:
        raise DataError(f"{target} cannot be made from the folder {root}: {type(error).__name__}: {error}") from error
    if not isinstance(made, FederatedData):
        raise UsageError(
            f"{target} is of type {type(made).__name__}: name what progfed.from_clients or from_datasets returned, a "
            "function that makes it of the data folder, or an experiment"
        )
    return made


def _chosen(names: list[str] | None) -> list[DataSet]:
    return [find(name) for name in names] if names else list(CATALOG)


def _described(one: DataSet, found: Found, root: Path) -> dict[str, Any]:
    return {
        "name": one.name,
        "state": found.state,
        "title": one.title,
        "size": one.size,
        "terms": one.terms,
        "homepage": one.homepage,
        "place": [[str(root / file.path) for file in form] for form in one.forms],
        "download": [download.address for download in one.downloads],
    }


def _distribution(data: FederatedData, shown: list[int], counts: np.ndarray, out: Path | None) -> dict[str, Any]:
    rows = zip(shown, counts, strict=True)
    return {
        "name": data.name,
        "clients": data.clients,
        "examples": sum(data.sizes),
        "classes": data.classes,
        "shown": [{"client": who, "examples": data.sizes[who], "labels": row.tolist()} for who, row in rows],
        "picture": None if out is None else str(out),
    }


def _drawn(data: FederatedData, shown: list[int], counts: np.ndarray) -> Table:
    """A table of at most twenty clients, with a bar for each label scaled to the client's largest."""
    table = _table("client", "examples", "labels", "share of each label, from 0 on")
    for place in spread(len(shown), 20):
        row = counts[place]
        heights = np.ceil(row / max(row.max(), 1) * (len(_BARS) - 1)).astype(int)
        bars = "".join(_BARS[height] for height in heights)
        table.add_row(str(shown[place]), f"{data.sizes[shown[place]]:,}", str(int((row > 0).sum())), bars)
    table.caption = f"{data.clients:,} clients, {sum(data.sizes):,} examples"
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print(table: Table) -> None:
    console().print(table)
