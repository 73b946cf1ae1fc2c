"""`progfed selftest`: a minute of trials that try to break a run, on the user's own machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

import typer

from progfed.chaos import TrialFailed
from progfed.chaos.rows import perform, rows
from progfed.cli.options import Json

Seconds = Annotated[float, typer.Option(help="The most that a trial which can be cut short may take.", min=1)]
TrialSeed = Annotated[int, typer.Option("--seed", help="The seed of the trials; another one breaks other things.")]


def command(main: Callable[[], None]) -> Callable[..., None]:
    """The command `selftest`; `main` is the whole command line, for the trial that interrupts it."""

    def selftest(seconds: Seconds = 20, seed: TrialSeed = 0, as_json: Json = False) -> None:
        """Kill, unplug and deceive small runs for about a minute, and check that nothing is lost."""
        outcomes = []
        for outcome in perform(rows(main), large=False, seed=seed, seconds=seconds):
            outcomes.append(outcome)
            if not as_json:
                typer.echo(outcome.line())
        if as_json:
            typer.echo(json.dumps([asdict(outcome) for outcome in outcomes], indent=2))
        broken = [outcome.row for outcome in outcomes if outcome.failure]
        if broken:
            raise TrialFailed(f"{len(broken)} of {len(outcomes)} trials failed ({', '.join(broken)}): please report it")

    return selftest
