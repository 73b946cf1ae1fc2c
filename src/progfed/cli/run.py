"""`progfed run` and `progfed demo`: training, with progress for people and JSON for machines."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from progfed.cli.compare import Runner, compare, compared_names
from progfed.cli.options import (
    DATA,
    WORKERS,
    Data,
    Fresh,
    Json,
    Name,
    Rounds,
    Runs,
    Seed,
    Seeds,
    Settings,
    Warmup,
    Workers,
    chosen,
    output_folder,
    seeds_asked,
)
from progfed.cli.output import print_json
from progfed.errors import StorageError, UsageError, printable
from progfed.report.notes import rejections
from progfed.report.numbers import amount
from progfed.runs.directory import Record, RunDirectory
from progfed.runs.experiment import Experiment
from progfed.runs.progress import bar, can_show
from progfed.runs.trackers import tracked
from progfed.runs.train import train
from progfed.runs.validation import validated

Where = Annotated[
    Literal["local", "flower"],
    typer.Option("--engine", help="Where clients train: processes of this machine, or Flower's simulation of nodes."),
]
Device = Annotated[str, typer.Option(help="Where clients train: cpu, or cuda, with a worker for each CUDA device.")]
Log = Annotated[
    Literal["tensorboard", "wandb", "mlflow"] | None,
    typer.Option("--log", help="Log to this tracker too; extra of that name."),
]
Compare = Annotated[
    bool,
    typer.Option("--compare", help="Train end-to-end too, over as many rounds and for as many bytes; say which won."),
]
Validate = Annotated[
    bool,
    typer.Option("--validate", help="Hold out a tenth of the training data and evaluate on it, not on the test set."),
]
Keep = Annotated[int | None, typer.Option("--keep", help="Keep every N-th model, for `progfed analyse`.", min=1)]
Out = Annotated[
    Path | None,
    typer.Option(
        help="The folder in which each run gets its own, RUN-seedSEED. Default: runs/NAME.", callback=output_folder
    ),
]
_DEMO = Path("runs/demo")


@dataclass(frozen=True, kw_only=True)
class How:
    """The options of training that are no part of the experiment."""

    data: Path
    workers: int
    fresh: bool
    engine: str = "local"
    device: str = "cpu"
    log: str | None = None
    keep: int | None = None


def run(
    name: Name,
    runs: Runs = None,
    rounds: Rounds = None,
    warmup: Warmup = None,
    seed: Seed = None,
    seeds: Seeds = None,
    settings: Settings = None,
    compare_runs: Compare = False,
    validate: Validate = False,
    data: Data = DATA,
    out: Out = None,
    workers: Workers = WORKERS,
    engine: Where = "local",
    device: Device = "cpu",
    log: Log = None,
    keep: Keep = None,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Train; a folder that holds an unfinished run of the same experiment is continued."""
    if engine != "local" and device != "cpu":
        raise UsageError("--device is for the local engine: leave it out with --engine flower")
    names = compared_names(name, runs or []) if compare_runs else runs or []
    found = [chosen(name, names, rounds, warmup, one, settings) for one in seeds_asked(seed, seeds)]
    found = [[validated(one) for one in same] for same in found] if validate else found
    how = How(data=data, workers=workers, fresh=fresh, engine=engine, device=device, log=log, keep=keep)
    if compare_runs:
        compare(found, _runner(out, how), as_json=as_json)
        return
    experiments = [experiment for same in found for experiment in same]
    folders = _folders(experiments, out)
    summaries = [_train(experiment, folder, how) for experiment, folder in zip(experiments, folders, strict=True)]
    if as_json:
        print_json(summaries)
        return
    for experiment, folder, summary in zip(experiments, folders, summaries, strict=True):
        cost = summary["cost"]
        print(
            f"{printable(summary['run'])}: {experiment.told(summary)} after {summary['rounds']} rounds, "
            f"{amount(cost['down_bytes'], 'B')} down, {amount(cost['up_bytes'], 'B')} up, "
            f"{amount(cost['flops'], 'FLOP')}, in {printable(str(folder))}"
        )
        if told := rejections(record["rejected"] for record in RunDirectory(folder).records()):
            print(f"{summary['run']}: {told}")


def demo(
    out: Annotated[Path, typer.Option(help="Where the runs and the report go.", callback=output_folder)] = _DEMO,
    rounds: Rounds = None,
    seed: Seed = None,
    workers: Workers = WORKERS,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Compare growing, also in small messages, with end-to-end training on the embedded images, and write a report."""
    whole, growing, small = chosen("demo", [], rounds, None, seed, None)
    runner = _runner(out, How(data=DATA, workers=workers, fresh=fresh))
    compare([[whole, growing]], runner, beside=[[small]], as_json=as_json)


def _folders(experiments: list[Experiment], out: Path | None) -> list[Path]:
    """The folder of each run: RUN-seedSEED in `out`.

    An `out` that is itself the folder of the only run, as older versions made it, is continued.
    """
    if out is not None and len(experiments) == 1 and _holds(out, experiments[0]):
        return [out]
    return [_folder(experiment, out) for experiment in experiments]


def _folder(experiment: Experiment, out: Path | None) -> Path:
    return (out or Path("runs") / experiment.name) / f"{experiment.run}-seed{experiment.recipe.seed}"


def _runner(out: Path | None, how: How) -> Runner:
    """Trains each run in its own folder."""
    return Runner(lambda experiment: _train(experiment, _folder(experiment, out), how), lambda one: _folder(one, out))


def _holds(folder: Path, experiment: Experiment) -> bool:
    """Whether a folder holds a run with this name and seed."""
    found = RunDirectory(folder).read("experiment.json") or {}
    told = found.get("name"), found.get("run"), found.get("recipe", {}).get("seed")
    return told == (experiment.name, experiment.run, experiment.recipe.seed)


def _train(experiment: Experiment, folder: Path, how: How) -> Record:
    """Train one run to the end, or until somebody stops it; returns its summary."""
    if how.fresh and folder.exists():
        _move_aside(folder)
    total = sum(phase.rounds for phase in experiment.recipe.schedule)
    logged = tracked(folder, how.log) if how.log else nullcontext(lambda record: None)
    with _stopping() as stop, _progress(experiment, folder, total) as shown, logged as write:
        for record in _rounds(experiment, folder, how):
            shown(record)
            write(record)
            if stop and record["round"] < total:
                break
    summary = RunDirectory(folder).read("summary.json")
    if summary is None:
        print(f"progfed: stopped and saved in {printable(str(folder))}: the same command continues", file=sys.stderr)
        raise typer.Exit(130)
    return summary


def _rounds(experiment: Experiment, folder: Path, how: How) -> Iterator[Record]:
    """The records of the rounds as they are trained, on the engine that was asked for."""
    if how.engine == "local":
        return train(experiment, folder, data=how.data, workers=how.workers, device=how.device, keep_every=how.keep)
    from progfed.flower.apps import simulation

    nodes = simulation(experiment, folder, how.data, how.workers)
    # every round is committed, as the states of clients go with it
    return train(experiment, folder, data=how.data, engine=nodes, checkpoint_every=1, keep_every=how.keep)


def _move_aside(folder: Path) -> None:
    number = 1
    while (aside := folder.with_name(f"{folder.name}.old{number}")).exists():
        number += 1
    try:
        folder.rename(aside)
    except OSError as error:
        raise StorageError(f"{folder} cannot be moved aside: {error.strerror}") from error


@contextmanager
def _stopping() -> Iterator[list[int]]:
    """A list to which Ctrl-C and SIGTERM add: the round is then finished and saved. A second Ctrl-C stops at once."""
    asked: list[int] = []

    def ask(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        print("progfed: finishing the round; once more to stop at once", file=sys.stderr)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress(experiment: Experiment, folder: Path, total: int) -> Iterator[Any]:
    """Progress on standard error: a bar with the time left on a terminal, otherwise a plain line for each round."""
    if not can_show():
        title = printable(f"{experiment.name}/{experiment.run}")
        yield lambda record: print(f"{title} {_line(experiment, record, total)}", file=sys.stderr, flush=True)
        return
    with bar(experiment, len(RunDirectory(folder).records())) as show:

        def shown(record: Record) -> None:
            told = record["metric"] is not None or record["rejected"]
            show(record, _note(experiment, record) if told else "")

        yield shown


def _line(experiment: Experiment, record: Record, total: int) -> str:
    return f"round {record['round']}/{total}  {_note(experiment, record)}"


def _note(experiment: Experiment, record: Record) -> str:
    total = record["total"]
    metric = f"{experiment.told(record):>8}"
    warmup = " warm-up" if record["warmup"] else ""
    sent = amount(total["down_bytes"] + total["up_bytes"], "B")
    refused = ", ".join(f"{count} {reason}" for reason, count in sorted(record["rejected"].items()))
    rejected = f"  rejected: {refused}" if refused else ""
    return f"stage {record['stage']}{warmup}  loss {record['loss']:.4f}  {metric}  {sent}{rejected}"
