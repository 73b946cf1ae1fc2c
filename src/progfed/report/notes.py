"""A sentence for each thing that is missing or went wrong and that a reader of the tables should know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from progfed.report.curves import Series, Study
from progfed.report.tables import has_shares


def notes(study: Study) -> tuple[str, ...]:
    """Sentences about what is missing, unfinished, or compared although it differs."""
    found = list(study.notes)
    for series in study.series:
        found += _unfinished(series)
        found += _comparison(study, series)
        found += _rejected(series)
    single = [series.label for series in study.series if len(series.counted) == 1]
    if single:
        found.append(f"one seed, so no standard deviation: {', '.join(single)}")
    found += [note for view in study.views[1:] for series in view.series for note in _shares(view, series)]
    found += _paper(study)
    return tuple(found)


def _unfinished(series: Series) -> list[str]:
    """A sentence for each seed that has not finished."""
    found = []
    for run in series.runs:
        if run.finished and run.evaluated:
            continue
        done = f"seed {run.seed} has {len(run.points)} of {run.planned} rounds"
        counted = "" if run in series.counted else ", and is not in the means"
        found.append(f"{series.label}: {done}{counted}; `progfed run` on {run.folder} continues it")
    return found


def rejections(rounds: Iterable[Mapping[str, int]]) -> str:
    """A sentence that says how many updates were rejected, in how many rounds and why; empty where none was.

    >>> rejections([{"missing": 1}, {}, {"not finite": 2, "missing": 1}])
    '4 updates were rejected, in 2 of 3 rounds: 2 missing, 2 not finite'
    """
    counted = [Counter(dict(reasons)) for reasons in rounds]
    total = sum(counted, Counter[str]())
    if not total:
        return ""
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(total.items()))
    number = total.total()
    told = "1 update was" if number == 1 else f"{number} updates were"
    return f"{told} rejected, in {sum(map(bool, counted))} of {len(counted)} rounds: {reasons}"


def _rejected(series: Series) -> list[str]:
    """A sentence for each seed of which updates were rejected."""
    found = ((run, rejections(point.rejected for point in run.points)) for run in series.runs)
    return [f"{series.label}, seed {run.seed}: {told}" for run, told in found if told]


def _comparison(study: Study, series: Series) -> list[str]:
    """Sentences about what makes a run and its baseline hard to compare."""
    name = series.first.baseline
    if not name or not series.points:
        return []
    baseline = study.baseline(series)
    if baseline is None:
        return [f"{series.label}: no run of its baseline {name} to compare with"]
    found = []
    if not (series.complete and baseline.complete):
        found.append(f"{series.label}: relative costs need a finished run and a finished baseline")
    found += _shares(study, series)
    if baseline.first.budget != series.first.budget:
        found.append(
            f"{series.label}: T is {series.first.budget}, its baseline {baseline.label} has T {baseline.first.budget}"
        )
    ours, theirs = ({run.seed for run in one.counted} for one in (series, baseline))
    if ours != theirs:
        found.append(f"{series.label}: seeds {sorted(ours)} are compared with seeds {sorted(theirs)} of the baseline")
    return found


def _shares(study: Study, series: Series) -> list[str]:
    """Why there are no costs to reach a share of the baseline's best, where there is a baseline."""
    baseline = study.baseline(series) if series.points else None
    if baseline is None or not baseline.complete or has_shares(baseline):
        return []
    why = "it is not above 0" if series.first.higher_is_better else "lower is better"
    return [f"{series.label}: no costs to reach a share of the baseline's best {series.first.metric}, since {why}"]


def _paper(study: Study) -> list[str]:
    """Sentences about what makes the runs and the paper's figures hard to compare."""
    printed = study.paper.rows
    if not printed:
        return []
    found: list[str] = []
    other: dict[tuple[int, int], list[str]] = {}
    names = {series.first.name for series in study.series}
    absent = [run for run in printed if run not in names]
    if absent:
        found.append(f"no run of {', '.join(absent)}, for which the paper prints a figure")
    for series in study.series:
        figure = printed.get(series.first.name)
        if figure and figure.rounds and figure.rounds != series.first.budget:
            other.setdefault((series.first.budget, figure.rounds), []).append(series.label)
    for (ours, theirs), labels in other.items():
        found.append(f"T is {ours}, the paper's figures are for T {theirs}: {', '.join(labels)}")
    return found
