"""What several commands share: their options, the runs that these choose, and where they print."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from progfed import experiments
from progfed.cli.settings import override, scaled
from progfed.errors import DataError, StorageError, UsageError
from progfed.runs.experiment import Experiment
from progfed.schedule import length


def at_least_one(option: typer.CallbackParam, value: int | None) -> int | None:
    """Refuse an option's number below 1."""
    if value is not None and value < 1:
        raise UsageError(f"{option.opts[0]} takes 1 or more, not {value}")
    return value


def existing_folder(value: Path | None) -> Path | None:
    """Refuse a file as the folder of data. A missing folder passes: a later error says what should be in it."""
    if value is not None and value.is_file():
        raise DataError(f"--data {value} is a file: give the folder that holds the data sets")
    return value


def output_folder(value: Path | None) -> Path | None:
    """Refuse a file as the folder to write to."""
    if value is not None and value.is_file():
        raise StorageError(f"--out {value} is a file: give a folder")
    return value


Name = Annotated[str, typer.Argument(help="An experiment (see `progfed list`), or a Python file of your own.")]
Runs = Annotated[list[str] | None, typer.Option("--run", help="Only this run; may be repeated. Default: all runs.")]
Rounds = Annotated[
    int | None,
    typer.Option(
        help="Scale to this many rounds of the baseline; stages, warm-up and longer runs in proportion.",
        callback=at_least_one,
    ),
]
Warmup = Annotated[int | None, typer.Option(help="Warm-up rounds after each growth, instead of the experiment's.")]
Seed = Annotated[int | None, typer.Option(help="The seed of everything random in the run.")]
Seeds = Annotated[str | None, typer.Option(help="Several seeds, one after the other: 0,1,2.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Change a setting: key=value; may be repeated.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Data = Annotated[Path, typer.Option("--data", help="The folder with the data sets.", callback=existing_folder)]
Workers = Annotated[int, typer.Option(help="Processes that train clients; the results do not depend on it.", min=1)]
Fresh = Annotated[bool, typer.Option("--fresh", help="Move an earlier run in the folder aside and start over.")]

DATA = Path(os.environ.get("PROGFED_DATA", "data"))
WORKERS = os.cpu_count() or 1
_WIDE = 1000


def console(width: int | None = None) -> Console:
    """The place where tables are printed: as wide as the terminal, or without a terminal as wide as tables need."""
    complete = None if "COLUMNS" in os.environ or sys.stdout.isatty() else _WIDE
    return Console(highlight=False, width=width or complete)


def seeds_asked(seed: int | None, seeds: str | None) -> list[int | None]:
    """The seeds that `--seed` or `--seeds` asks for; None is that of the experiment."""
    if seeds is None:
        return [seed]
    if seed is not None:
        raise UsageError("--seed and --seeds are two ways to say the same: give one of them")
    try:
        asked = [int(one) for one in seeds.split(",")]
    except ValueError as error:
        raise UsageError(f"--seeds takes whole numbers with commas between them, 0,1,2, not {seeds!r}") from error
    return list(dict.fromkeys(asked))


def chosen(
    name: str, runs: list[str], rounds: int | None, warmup: int | None, seed: int | None, settings: list[str] | None
) -> list[Experiment]:
    """The runs that a command line asks for, with its changes applied.

    Args:
        name: The name of an experiment, or a Python file.
        runs: The names of runs; none: all.
        rounds: T of the baseline; a run that is longer or shorter than its baseline keeps that proportion.
        warmup: Warm-up rounds.
        seed: The seed.
        settings: Changes such as `local.epochs=2`.
    """
    found = []
    family = experiments.load(name)
    lengths = {experiment.run: length(experiment.recipe.schedule) for experiment in family}
    for experiment in experiments.named(family, runs):
        own = lengths[experiment.run]
        whole = lengths.get(experiment.baseline, own)
        wanted = None if rounds is None else max(1, round(rounds * own / whole))
        # warm-up is part of the progressive runs only: a baseline never grows
        experiment = scaled(experiment, rounds=wanted, warmup=warmup, seed=seed)
        for setting in settings or []:
            experiment = override(experiment, setting)
        found.append(experiment)
    return found
