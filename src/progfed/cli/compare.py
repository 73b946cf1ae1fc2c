"""`--compare`: whether growing pays, from choosing the runs to the sentence at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from progfed import experiments
from progfed.cli.output import print_json
from progfed.cli.report import show_tables
from progfed.errors import UsageError, printable
from progfed.report import write_report
from progfed.report.verdict import Side, Verdict
from progfed.runs.compare import checked_baseline, equal_bytes, is_end_to_end, measured_rounds, planned_rounds
from progfed.runs.directory import Record
from progfed.runs.experiment import Experiment


@dataclass(frozen=True)
class Runner:
    """How a run is trained to its end, and the folder that it gets."""

    train: Callable[[Experiment], Record]
    folder: Callable[[Experiment], Path]


def compared_names(name: str, wanted: Sequence[str]) -> list[str]:
    """The growing run to compare, by its name, after its baseline where it has one.

    It is the one that was asked for, or else the first that has a baseline, or else the first that grows.

    Args:
        name: The experiment, or a Python file.
        wanted: The runs that were asked for by `--run`: none or one.
    """
    if len(wanted) > 1:
        raise UsageError(f"--compare takes one --run, the growing one, not {len(wanted)}: {', '.join(wanted)}")
    family = experiments.load(name)
    growing = [run for run in family if not is_end_to_end(run.recipe.schedule)]
    first = next((run for run in growing if run.baseline), next(iter(growing), family[0]))
    (chosen,) = experiments.named(family, wanted) if wanted else (first,)
    names = [chosen.baseline, chosen.run] if chosen.baseline else [chosen.run]
    return [run.run for run in experiments.named(family, names)]


def compare(
    chosen: Sequence[Sequence[Experiment]],
    runner: Runner,
    *,
    beside: Sequence[Sequence[Experiment]] = (),
    as_json: bool,
) -> None:
    """Train what is compared, for every seed, write a report of it, and say which won at equal bytes.

    Args:
        chosen: For each seed the growing run, after its baseline where it has one.
        runner: Trains a run, and knows its folder.
        beside: For each further run that is told of, its seeds.
        as_json: Whether to print JSON instead of tables and a sentence.
    """
    growing = [runs[-1] for runs in chosen]
    whole = [checked_baseline(runs[-1], runs[0] if len(runs) > 1 else None) for runs in chosen]
    rounds = _planned(growing, whole)
    summaries = [[runner.train(run) for run in side] for side in (whole, growing)]
    if rounds is None:
        rounds = measured_rounds([runner.folder(run) for run in growing], [runner.folder(run) for run in whole])
    equal = [equal_bytes(*pair, rounds) for pair in zip(growing, whole, strict=True)]
    summaries.append([runner.train(run) for run in equal])
    sides = [Side.of(side) for side in summaries]
    others = [[runner.train(run) for run in seeds] for seeds in beside]
    judged = next(iter(growing[0].judged.values()))
    told = tuple(map(Side.of, others))
    verdict = Verdict(*sides, beside=told, higher_is_better=judged.higher_is_better, unit=judged.unit)
    folders = [runner.folder(run) for run in (*whole, *growing, *equal, *chain.from_iterable(beside))]
    page = write_report(folders, folders[0].parent / "report")[0]
    if as_json:
        runs = [summary for side in (*summaries, *others) for summary in side]
        print_json({"runs": runs, "comparison": verdict.as_json(), "report": str(page)})
        return
    show_tables(folders)
    print(f"report: {printable(str(page))}")
    print(printable(verdict.sentence()))


def _planned(growing: Sequence[Experiment], whole: Sequence[Experiment]) -> int | None:
    """The most that the bytes of a seed buy, so that all seeds have runs of one length; None where no plan knows."""
    found = [planned_rounds(*pair) for pair in zip(growing, whole, strict=True)]
    known = [rounds for rounds in found if rounds is not None]
    return max(known) if len(known) == len(found) else None
