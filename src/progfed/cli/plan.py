"""`progfed list` and `progfed plan`: which experiments there are, and what they will cost."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from progfed import experiments
from progfed.cli.options import Json, Name, Rounds, Runs, Seed, Settings, Warmup, chosen, console
from progfed.cli.output import print_json
from progfed.errors import printable
from progfed.report.numbers import amount, percent
from progfed.runs.plan import Plan, plans
from progfed.schedule import length


def list_experiments(as_json: Json = False) -> None:
    """List the experiments and their runs."""
    rows = [
        {
            "experiment": name,
            "run": run.run,
            "rounds": length(run.recipe.schedule),
            "stages": run.recipe.schedule[-1].stage,
            "baseline": run.baseline,
        }
        for name in experiments.NAMES
        for run in experiments.load(name)
    ]
    if as_json:
        print_json(rows)
        return
    table = Table("experiment", "run", "rounds", "stages", "compared with", box=None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    console().print(table)


def plan(
    name: Name,
    runs: Runs = None,
    rounds: Rounds = None,
    warmup: Warmup = None,
    seed: Seed = None,
    settings: Settings = None,
    as_json: Json = False,
    width: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Predict parameters, messages, FLOPs and peak memory of each stage, without training anything."""
    family = chosen(name, [], rounds, warmup, seed, settings)
    found = plans(experiments.named(family, runs or []), family)
    if as_json:
        print_json(found)
        return
    shown = console(width)
    for planned in found:
        shown.print(_table(planned))


def _table(planned: Plan) -> Table:
    bound = "" if planned["exact"] else " (bytes are a bound that always holds)"
    if "expected" in planned:
        bound = " (costs are averages over cohorts: some clients train only a part of the model)"
    title = Text(printable(f"{planned['experiment']} / {planned['run']}{bound}"))
    table = Table(title=title, title_justify="left", box=None)
    for heading in ("stage", "rounds", "warm-up", "parameters", "head", "down", "up", "FLOPs", "peak memory"):
        table.add_column(heading, justify="right")
    for row in planned["stages"]:
        counts = (str(row["stage"]), str(row["rounds"]), str(row["warmup_rounds"]), f"{row['parameters']:,}")
        table.add_row(*counts, percent(row["head_share"], 1), *_costs(row))
    total, relative = planned["total"], planned["relative"]
    table.add_row("total", str(total["rounds"]), "", "", "", *_costs(total), style="bold")
    if "earliest" in planned:
        table.add_row("", "", "", "if it grows as early as it may:", "", *_costs(planned["earliest"]))
    table.add_row("", "", "", "of baseline:", "", *_shares(relative))
    table.add_row("", "", "", "paper's count:", "", percent(relative["paper_bytes"]))
    return table


def _costs(row: Plan) -> list[str]:
    units = {"down_bytes": "B", "up_bytes": "B", "flops": "FLOP", "memory_bytes": "B"}
    return [amount(row[name], unit) for name, unit in units.items()]


def _shares(relative: dict[str, float]) -> tuple[str, ...]:
    return percent(relative["bytes"]), "", percent(relative["flops"]), percent(relative["memory"])
