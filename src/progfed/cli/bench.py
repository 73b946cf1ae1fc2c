"""`progfed bench`: speed as ratios against peers and the machine's limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from progfed.cli.options import Json
from progfed.errors import UsageError

Rows = Annotated[str | None, typer.Option(help="Which rows, separated by commas, such as W1,W2; default: all.")]
Turns = Annotated[int, typer.Option(help="Rounds of each variant; medians are shown.")]
Peers = Annotated[str, typer.Option(help="Which peers, separated by commas; each gets an environment of its own.")]
Again = Annotated[bool, typer.Option("--fresh", help="Measure again what is already there.")]


def bench(
    rows: Rows = None, turns: Turns = 3, peers: Peers = "plain,flower,pfl", fresh: Again = False, as_json: Json = False
) -> None:
    """Measure a round's speed against peers and the machine's limit, as ratios; an interrupted run goes on."""
    script = script_of(Path(__file__).parents[3])
    options = ["--turns", str(turns), "--peers", peers]
    options += ["--rows", rows] if rows else []
    options += [name for name, given in (("--fresh", fresh), ("--json", as_json)) if given]
    done = subprocess.run([sys.executable, str(script), *options], check=False)
    if done.returncode:
        raise typer.Exit(done.returncode)


def script_of(checkout: Path) -> Path:
    """The benchmark's script; it is part of the repository, not of an installed package."""
    script = checkout / "benchmarks" / "run.py"
    if not script.is_file():
        raise UsageError(
            "the benchmarks are part of the repository, not of the installed package: "
            "clone it, install it with `pip install -e .`, and run `progfed bench` there"
        )
    return script
