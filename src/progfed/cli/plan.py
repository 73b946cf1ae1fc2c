"""`progfed list` and `progfed plan`: which experiments there are, and what they will cost."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from progfed import experiments
from progfed.cli.options import Json, Name, Rounds, Runs, Seed, Settings, Warmup, chosen, console
from progfed.cli.output import print_json
from progfed.devices import PRESETS, Device, named, with_link
from progfed.errors import UsageError, printable
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
    device: Annotated[str | None, typer.Option(help=f"Hours and bytes on a device: {', '.join(PRESETS)}.")] = None,
    link: Annotated[str | None, typer.Option(help="Its link down and up instead of the usual: 10Mbit/2Mbit.")] = None,
    as_json: Json = False,
    width: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Predict parameters, messages, FLOPs and peak memory of each stage, without training anything."""
    asked = experiments.named(experiments.load(name), runs or [])
    needed = dict.fromkeys(run for one in asked for run in (one.baseline or one.run, one.run))
    family = chosen(name, [*needed], rounds, warmup, seed, settings)  # a setting need not fit the other runs
    found = plans(experiments.named(family, runs or []), family, device=_device(device, link))
    if as_json:
        print_json(found)
        return
    shown = console(width)
    for planned in found:
        shown.print(_table(planned))
        if "device" in planned:
            shown.print(_device_table(planned, device))


def _device(name: str | None, link: str | None) -> Device | None:
    """The device that the options ask for."""
    if name is None and link is not None:
        raise UsageError(f"--link {link} needs --device, which says how fast it trains: one of {', '.join(PRESETS)}")
    device = None if name is None else named(name)
    return device if device is None or link is None else with_link(device, link)


def _table(planned: Plan) -> Table:
    bound = "" if planned["exact"] else " (bytes are a bound that always holds)"
    if "expected" in planned:
        bound = " (costs are averages over cohorts: some clients train only a part of the model)"
    if "one_example" in planned:
        bound += " (FLOPs of clients with one example each: Experiment(clients=…, examples=…) says how many there are)"
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
    if "estimate" in planned:
        expected = (amount(planned["estimate"][name], "B") for name in ("down_bytes", "up_bytes"))
        table.add_row("", "", "", "estimate of the bytes:", "", *expected)
        table.add_row("", "", "", "of baseline:", "", percent(relative["estimated_bytes"]))
    table.add_row("", "", "", "paper's count:", "", percent(relative["paper_bytes"]))
    return table


def _device_table(planned: Plan, name: str | None) -> Table:
    """What a device spends that takes part in every round."""
    title = Text(f"on {'a ' + name if name else 'the device of all clients'}, if it takes part in every round")
    table = Table(title=title, title_justify="left", box=None)
    for heading in ("stage", "rounds", "hours", "down", "up", "peak memory", "fits"):
        table.add_column(heading, justify="right")
    for row in planned["device"]["stages"]:
        table.add_row(str(row["stage"]), *_device_costs(row))
    table.add_row("total", *_device_costs(planned["device"]["total"]), style="bold")
    if share := planned["device"]["share"]:
        total = planned["device"]["total"]
        sent = (amount(share * total[name], "B") for name in ("down_bytes", "up_bytes"))
        table.add_row("drawn as others:", f"{share * total['rounds']:.1f}", "", *sent)
    if "device_seconds" in planned["relative"]:
        table.add_row("of baseline:", "", percent(planned["relative"]["device_seconds"]))
    return table


def _device_costs(row: Plan) -> tuple[str, ...]:
    amounts = (amount(row[name], "B") for name in ("down_bytes", "up_bytes", "memory_bytes"))
    return str(row["rounds"]), f"{row['seconds'] / 3600:.2f}", *amounts, "yes" if row["fits"] else "no"


def _costs(row: Plan) -> list[str]:
    units = {"down_bytes": "B", "up_bytes": "B", "flops": "FLOP", "memory_bytes": "B"}
    return [amount(row[name], unit) for name, unit in units.items()]


def _shares(relative: dict[str, float]) -> tuple[str, ...]:
    return percent(relative["bytes"]), "", percent(relative["flops"]), percent(relative["memory"])
