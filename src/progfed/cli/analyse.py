"""`progfed analyse` and `progfed theorem`: the paper's convergence section, measured."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from progfed.analysis import Quadratic, Trained, check_bound, discrepancy, draw_slices, measure, open_run, slices
from progfed.analysis.theorem import Bound, Rate, rate, step_size
from progfed.cli.options import DATA, Data, Json
from progfed.cli.output import print_json
from progfed.errors import StorageError, UsageError, printable
from progfed.report.collect import folders

Only = Annotated[
    Literal["discrepancy", "slices"] | None, typer.Option("--only", help="Measure only this. Default: what applies.")
]


def analyse(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Folders of runs, or folders above them.")],
    data: Data = DATA,
    experiment: Annotated[
        str | None, typer.Option(help="The experiment, or the Python file, that the runs are of, if not progfed's own.")
    ] = None,
    examples: Annotated[
        int | None, typer.Option(help="Gradients over this many examples, drawn once. Default: all.", min=1)
    ] = None,
    only: Only = None,
    as_json: Json = False,
) -> None:
    """Measure alignment and norm discrepancy (Theorem 3.3), and segment some slices, with the models that runs kept."""
    done = []
    for folder in folders(directories, []):
        trained = open_run(folder, data=data, source=experiment)
        done.append({"run": str(folder), "files": [str(path) for path in _analysed(trained, examples, only)]})
    if not done:
        raise StorageError(f"no run in {', '.join(map(str, directories))}: give the folder of a `progfed run`")
    if as_json:
        print_json(done)
        return
    for one in done:
        print(printable(f"{one['run']}: {', '.join(one['files']) or 'nothing to measure'}"))
    print("`progfed report` on the same folders shows them")


def _analysed(trained: Trained, examples: int | None, only: str | None) -> list[Path]:
    """Analyse one run; returns the files that were written."""
    written: list[Path] = []
    if not trained.models:
        _say(f"{trained.path}: no model is kept there, and the run is not finished: train with --keep N")
        return written
    grows = any(stage < trained.full for _, stage, _ in trained.models)
    if only != "slices" and grows:
        found = []
        for one in measure(trained, examples=examples):
            alpha, q = ("undefined" if value is None else f"{value:.4f}" for value in (one.alpha, one.q))
            _say(f"{trained.path}: round {one.round}, stage {one.stage}: alpha {alpha}, q {q}")
            found.append(one)
        written.append(discrepancy.write(found, trained.path))
    elif only == "discrepancy":
        _say(f"{trained.path}: only models of the last stage, where alpha and q are 1: use --keep N on a growing run")
    if only != "discrepancy" and slices.segments(test := trained.data.test_examples()):
        written.append(slices.write(draw_slices(trained, test), trained.path))
    return written


def theorem(
    rounds: Annotated[int, typer.Option(help="T, the iterations of each run.", min=3)] = 300,
    runs: Annotated[int, typer.Option(help="Runs to average over.", min=2)] = 200,
    sigma: Annotated[float, typer.Option(help="The noise of a gradient: its standard deviation.", min=0)] = 0.5,
    step: Annotated[float, typer.Option(help="Take this many times 1/L as gamma too.", min=0)] = 10.0,
    longest: Annotated[
        int, typer.Option(help="Fit how errors fall with T, from T = 100 up to this T; 0: leave it out.", min=0)
    ] = 10_000,
    as_json: Json = False,
) -> None:
    """Check Theorem 3.3 on a quadratic whose L, sigma and minimum are known: bound, remark, and rate over T.

    The bound must hold with the theorem's step, also where alpha is negative, and a wrong step breaks it.
    """
    problem, elsewhere = Quadratic(sigma=sigma), Quadratic(sigma=sigma, apart=0.5)
    tried = {
        "the theorem's step": (problem, step_size(problem, rounds)),
        f"{step:g}/L": (problem, step / problem.smoothness),
        "sub-models that point elsewhere": (elsewhere, step_size(elsewhere, rounds)),
    }
    found = {name: check_bound(own, rounds=rounds, runs=runs, gamma=gamma) for name, (own, gamma) in tried.items()}
    fitted = rate(problem, _totals(longest), runs=runs) if longest else None
    if as_json:
        told: dict[str, Any] = {"bounds": {name: _plain(bound) for name, bound in found.items()}}
        print_json(told | ({"rate": asdict(fitted) | {"slopes": fitted.slopes}} if fitted else {}))
        return
    for name, bound in found.items():
        _tell_bound(name, bound)
    if fitted:
        _tell_rate(fitted)


def _totals(longest: int) -> list[int]:
    """Numbers of iterations from 100 up to the longest, two in each power of ten."""
    totals = [round(10 ** (half / 2)) for half in range(4, 13)]
    if longest < totals[1]:
        raise UsageError(f"--longest {longest} leaves no two T to fit a slope to: give at least {totals[1]}, or 0")
    return [total for total in totals if total <= longest]


def _tell_bound(name: str, bound: Bound) -> None:
    print(
        f"{name} (gamma {bound.gamma:.4g}): sub-models {bound.sub_models:.4g} ± {bound.sub_models_error:.1g}, "
        f"bound {bound.sub_models_bound:.4g}; full model {bound.full:.4g}, bound {bound.full_bound:.4g} "
        f"(alpha from {bound.alpha:.3g}, q to {bound.q:.3g}): {'holds' if bound.holds else 'violated'}; "
        f"half of the last half's mean, {bound.last_half / 2:.4g}, is at most the first: "
        f"{'holds' if bound.remark_holds else 'violated'}"
    )


def _tell_rate(found: Rate) -> None:
    slopes = found.slopes
    print(
        f"errors over T = {', '.join(map(str, found.rounds))} fall as T to the power of: sub-models "
        f"{slopes['sub_models']:.2f}, last half {slopes['last_half']:.2f}, full model {slopes['full']:.2f}; "
        f"end-to-end training {slopes['end_to_end']:.2f}"
    )


def _plain(bound: Bound) -> dict[str, Any]:
    """The bound as plain values, without infinities, which JSON cannot hold."""
    values = asdict(bound) | {"holds": bound.holds, "remark_holds": bound.remark_holds}
    return {name: None if value == float("inf") else value for name, value in values.items()}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
