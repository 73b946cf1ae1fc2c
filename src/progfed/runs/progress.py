"""A bar that tells how far a run is, with the time left, in a terminal or a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from progfed.errors import printable
from progfed.runs.directory import Record
from progfed.runs.experiment import Experiment

Show = Callable[[Record, str], None]
"""Shows that a round is done, and a note about it; an empty note leaves the one before."""


def can_show() -> bool:
    """Whether standard error is a terminal, or this is a notebook."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.is_terminal or console.is_jupyter


@contextmanager
def bar(experiment: Experiment, done: int) -> Iterator[Show]:
    """A bar for a run of which some rounds are done, on standard error."""
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[note]}", markup=False),
    )
    total = sum(phase.rounds for phase in experiment.recipe.schedule)
    with progress.Progress(*columns, console=Console(stderr=True)) as shown:
        title = printable(f"{experiment.name}/{experiment.run}")
        task = shown.add_task(title, total=total, completed=done, note="")

        def show(record: Record, note: str) -> None:
            shown.update(task, completed=record["round"])
            if note:
                shown.update(task, note=note)

        yield show
