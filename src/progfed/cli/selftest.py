"""`progfed selftest`: half a minute of trials that try to break a run on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from progfed.cli.options import Json
from progfed.cli.output import print_json
from progfed.runs import selftest as trials

Kills = Annotated[int, typer.Option(help="How often a small run is killed and continued.", min=1)]
Messages = Annotated[int, typer.Option(help="How many damaged messages are opened.", min=1)]
TrialSeed = Annotated[int, typer.Option("--seed", help="The seed of the trials; another one breaks other things.")]


def selftest(kills: Kills = 20, messages: Messages = 20_000, seed: TrialSeed = 0, as_json: Json = False) -> None:
    """Kill small runs and damage messages for about half a minute, and check that nothing is lost."""
    outcomes = []
    for outcome in trials.selftest(kills=kills, messages=messages, seed=seed):
        outcomes.append(outcome)
        if not as_json:
            result = f"FAILED: {outcome.failure}" if outcome.failure else "ok"
            typer.echo(f"{outcome.trial:<46} {outcome.count:>7,} times, {outcome.seconds:.1f} s: {result}")
    if as_json:
        print_json([asdict(outcome) for outcome in outcomes])
    broken = [outcome.trial for outcome in outcomes if outcome.failure]
    if broken:
        raise trials.TrialFailed(f"{len(broken)} of {len(outcomes)} trials failed ({'; '.join(broken)}): report it")
