"""`progfed inspect`: the stages of a model and the predicted saving, before anything is trained."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from progfed.blocks import Progressive
from progfed.cli.options import Json, Runs, at_least_one, chosen, console
from progfed.cli.output import print_json
from progfed.cli.user_model import user_model, zeros
from progfed.errors import UsageError, printable
from progfed.population import FederatedData
from progfed.recipe.recipe import Local, Recipe
from progfed.report.numbers import amount, percent
from progfed.runs.experiment import Experiment
from progfed.runs.overview import Overview, Span, StageView, overview
from progfed.schedule import progressive

WIDTH, HEIGHT = 60, 6
_ROUNDS = 100
_SHOWN = 6  # layers of a stage that are named; more would push the numbers away
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_PLAIN = " " * 4 + "#" * 5

Target = Annotated[
    str, typer.Argument(metavar="FILE:MODEL", help="A model in a Python file of your own, or an experiment's name.")
]
Balance = Annotated[Literal["params", "flops"] | None, typer.Option(help="What the blocks should have the same of.")]


def inspect(
    target: Target,
    example: Annotated[str | None, typer.Option(help="The name of an example input in the file.")] = None,
    shape: Annotated[str | None, typer.Option("--input", help="Or its shape without the batch: 3x32x32.")] = None,
    dtype: Annotated[str, typer.Option(help="The input's type; tokens are int64.")] = "float32",
    stages: Annotated[
        int | None,
        typer.Option(
            help="Stages to split an ordinary model into. Default: 3, or as --cuts say.", callback=at_least_one
        ),
    ] = None,
    balance: Balance = None,
    cuts: Annotated[str | None, typer.Option(help="Or where to cut: names of modules, as a,b.")] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds T of the schedule. A model's default: 100.", callback=at_least_one)
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Examples in a batch. A model's default: 20.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Momentum of the clients' SGD. A model's default: 0.")] = None,
    runs: Runs = None,
    as_json: Json = False,
) -> None:
    """Show stages, parameters, FLOPs, messages, peak memory and the predicted saving; nothing is trained."""
    splitting = {"balance": balance, "cuts": cuts.split(",") if cuts else None}
    options = {name: value for name, value in splitting.items() if value is not None}
    local = {name: value for name, value in {"batch": batch, "momentum": momentum}.items() if value is not None}
    if re.search(r"\.py:\w+$", target):
        sample = zeros(shape, dtype) if shape else example
        model = user_model(target, example=sample, stages=stages, **options)
        looked = [_experiment(target, model, rounds or _ROUNDS, local)]
    else:
        if options or any(option is not None for option in (example, shape, stages)):
            raise UsageError(f"{target} is not FILE:MODEL, and only such a model can be split: leave those options out")
        settings = [f"local.{name}={value}" for name, value in local.items()]
        looked = _compared(chosen(target, runs or [], rounds, None, None, settings), runs)
    found = [overview(experiment) for experiment in looked]
    if as_json:
        print_json([asdict(one) for one in found])
        return
    for one in found:
        _show(one)


def _experiment(target: str, model: Progressive, rounds: int, local: dict[str, Any]) -> Experiment:
    """An experiment for a model alone, with one client."""
    path, _, name = target.rpartition(":")
    recipe = Recipe(schedule=progressive(rounds, stages=model.stages), cohort=1, local=Local(**local))
    return Experiment(name=Path(path).name, run=name, model=model, data=_no_data, recipe=recipe)


def _no_data(folder: Path) -> FederatedData:
    raise UsageError("a model that is inspected has no data")


def _compared(found: list[Experiment], runs: list[str] | None) -> list[Experiment]:
    """The runs to show: baselines have only one stage, so they are left out unless they are asked for."""
    return found if runs else [run for run in found if run.baseline] or found


def _show(found: Overview) -> None:
    shown = console()
    title = f"{found.experiment} / {found.run}: {found.model}, T = {found.rounds} rounds, batch {found.batch}"
    shown.print(Text(printable(title), style="bold"))
    shown.print(_table(found.stages))
    print("\nbytes of a client's round, down and up")
    for line in picture(found.schedule, eighths=_can_print(_EIGHTHS)):
        print(line)
    saved = {name: percent(found.relative[name]) for name in ("bytes", "flops", "memory")}
    print(f"\nof end-to-end training: {saved['bytes']} of the bytes, {saved['flops']} of the FLOPs;")
    early = ", ".join(f"{percent(one.memory_relative, 1)} in stage {one.stage}" for one in found.stages)
    print(f"of its peak memory: {early}\n")


def _table(stages: tuple[StageView, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("stage", justify="right")
    table.add_column("adds", overflow="fold")
    for heading in ("parameters", "message", "head's share", "FLOPs of an example", "peak memory", "activations"):
        table.add_column(heading, justify="right", overflow="fold")
    for one in stages:
        table.add_row(
            str(one.stage),
            Text(printable(f"{_listed(one.adds)}; head: {_listed(one.head)}")),
            f"{one.parameters:,}",
            amount(one.message_bytes, "B"),
            percent(one.head_share, 1),
            amount(one.flops, "FLOP"),
            amount(one.memory_bytes, "B"),
            amount(one.memory.activations, "B"),
        )
    return table


def _listed(layers: tuple[str, ...]) -> str:
    if len(layers) <= _SHOWN:
        return ", ".join(layers)
    half = _SHOWN // 2
    return ", ".join((*layers[:half], f"… {len(layers) - 2 * half} more …", *layers[-half:]))


def picture(schedule: tuple[Span, ...], *, eighths: bool = True) -> list[str]:
    """The schedule as bars: rounds to the right, bytes of a round upwards.

    >>> for line in picture((Span(1, 30, False, 500), Span(2, 30, False, 1000)), eighths=False)[-3:]:
    ...     print(line.rstrip())
               |############################################################
               +------------------------------------------------------------
                1                             31                          60
    """
    sizes = [span.bytes for span in schedule for _ in range(span.rounds)]
    top = max(sizes)
    columns = [max(1, round(8 * HEIGHT * sizes[len(sizes) * place // WIDTH] / top)) for place in range(WIDTH)]
    lines = []
    for row in reversed(range(HEIGHT)):
        filled = (min(8, max(0, column - 8 * row)) for column in columns)
        label = amount(top, "B") if row == HEIGHT - 1 else ""
        lines.append(f"{label:>10} |" + "".join((_EIGHTHS if eighths else _PLAIN)[height] for height in filled))
    return [*lines, " " * 11 + "+" + "-" * WIDTH, " " * 12 + _ruler(schedule, len(sizes))]


def _ruler(schedule: tuple[Span, ...], rounds: int) -> str:
    """The line below the bars: the rounds at which the message changes, as far as there is room, and the last round."""
    marks, last, first = [" "] * WIDTH, str(rounds), 1
    for span in schedule:
        text, place = str(first), -(-(first - 1) * WIDTH // rounds)
        end = place + len(text)
        if end < WIDTH - len(last) and all(mark == " " for mark in marks[max(0, place - 1) : end + 1]):
            marks[place:end] = text
        first += span.rounds
    marks[WIDTH - len(last) :] = last
    return "".join(marks)


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
