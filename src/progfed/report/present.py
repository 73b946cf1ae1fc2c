"""Tables for readers: as text for the terminal and the page, as plain values for CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from progfed.experiments.printed import Printed
from progfed.report.curves import Mean, Series, Study, mean_of
from progfed.report.frontier import frontier
from progfed.report.metric_figure import styles
from progfed.report.numbers import MISSING, amount, duration, percent, spread
from progfed.report.panels import Chart, Line, Panel
from progfed.report.per_stage import StageCost
from progfed.report.tables import SHARES, Area, Reach, Relative, Row, rows


@dataclass(frozen=True)
class Table:
    """A table as it is shown: a title, headings, and cells of text."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def result_table(study: Study, found: tuple[Row, ...]) -> Table:
    """The results of an experiment as text; columns without any value are left out."""
    metric = study.metric
    columns: list[tuple[str, list[str]]] = [
        ("run", [row.run for row in found]),
        ("seeds", [str(len(row.seeds)) for row in found]),
        (study.heading, [_mean(row.metric, study.unit) for row in found]),
        (f"best {study.unit}".rstrip(), [_mean(row.best, study.unit) for row in found]),
        *_other_metrics(study, found),
        (
            f"paper {metric} %",
            [spread(row.printed.metric, row.printed.std) if row.printed else MISSING for row in found],
        ),
        ("bytes down", [amount(row.down_bytes, "B") for row in found]),
        ("bytes up", [amount(row.up_bytes, "B") for row in found]),
        *_cost_columns(study, found),
        ("peak memory", [amount(row.memory_bytes, "B") if row.memory_bytes else MISSING for row in found]),
        (
            f"baseline {study.unit or metric} at same bytes",
            [_plain(row.baseline_at_same_bytes, study.unit) for row in found],
        ),
        ("hours on devices", [_device_hours(series) for series in study.series]),
        ("time", [duration(row.seconds) for row in found]),
        ("rounds", [_rounds(row) for row in found]),
    ]
    kept = [(heading, cells) for heading, cells in columns if any(cell != MISSING for cell in cells)]
    title = f"{study.experiment}: results and costs"
    return Table(title, tuple(heading for heading, _ in kept), tuple(zip(*(cells for _, cells in kept), strict=True)))


def _other_metrics(study: Study, found: tuple[Row, ...]) -> list[tuple[str, list[str]]]:
    """The last and the best value of each metric beside the first."""
    columns = []
    for view in study.views[1:]:
        own = {row.run: row for row in rows(view)}
        for name, part in ((view.heading, "metric"), (f"best {view.heading}", "best")):
            values = [getattr(own[row.run], part) if row.run in own else None for row in found]
            columns.append((name, [_mean(value, view.unit) for value in values]))
    return columns


def _device_hours(series: Series) -> str:
    """What a run would have taken on the clients' devices, where they are known."""
    hours = [run.points[-1].device_hours for run in series.counted]
    known = [one for one in hours if one is not None]
    return f"{mean_of(known).mean:.2f}" if known and len(known) == len(hours) else MISSING


def _cost_columns(study: Study, found: tuple[Row, ...]) -> list[tuple[str, list[str]]]:
    """Columns of costs relative to the baseline: ours as measured, ours by the paper's accounting, and the paper's."""
    columns = [
        ("bytes vs baseline", [_share(row.relative, "bytes") for row in found]),
        ("paper accounting vs baseline", [_share(row.relative, "paper_bytes") for row in found]),
    ]
    if name := study.paper.reference:
        columns += [
            (f"bytes vs {name}", [_share(row.reference, "bytes") for row in found]),
            (f"paper accounting vs {name}", [_share(row.reference, "paper_bytes") for row in found]),
        ]
    columns += [
        ("paper: bytes", [_share(row.printed, "bytes") for row in found]),
        ("FLOPs vs baseline", [_share(row.relative, "flops") for row in found]),
        ("paper: FLOPs", [_share(row.printed, "flops") for row in found]),
    ]
    if any(row.printed and row.printed.seconds for row in found):
        columns += [
            ("time vs baseline", [_share(row.relative, "seconds") for row in found]),
            ("paper: time", [_share(row.printed, "seconds") for row in found]),
        ]
    return columns


def frontier_table(study: Study) -> Table | None:
    """The best of all runs for at most 1, 2, 5, 10, … bytes, as text; None where there is no frontier."""
    found = frontier(study)
    if not found:
        return None
    budgets = [digit * 10.0**power for power in range(16) for digit in (1, 2, 5)]
    cells = []
    for budget in budgets:
        within = [one for one in found if one.bytes <= budget]
        if within and within[-1].bytes > budget / 10:
            best = within[-1]
            metric = spread(best.metric, best.point.metric.std, study.unit)
            cells.append((amount(budget, "B"), metric, best.series.label, str(best.point.round), str(best.point.stage)))
        if len(within) == len(found):
            break
    headings = ("for at most", study.heading, "run", "round", "stage")
    return Table(f"{study.title}: the best of all runs for so many bytes", headings, tuple(cells))


def area_table(study: Study, found: tuple[Row, ...]) -> Table | None:
    """The mean metric of each run, and of its baseline, over the costs that both cover, as text."""
    names = ("bytes", "baseline_bytes", "flops", "baseline_flops")
    cells = [(row.run, *(_plain(getattr(row.area, name), study.unit) for name in names)) for row in found if row.area]
    if not cells:
        return None
    headings = ("run", "over bytes", "baseline, over these bytes", "over FLOPs", "baseline, over these FLOPs")
    title = f"{study.experiment}: area under the curve, as the mean {study.heading} over a cost"
    return Table(title, headings, tuple(cells))


def reach_table(study: Study, found: tuple[Reach, ...]) -> Table | None:
    """Bytes and FLOPs to reach a share of the baseline's best metric, relative to the baseline's, as text."""
    if not found:
        return None
    cells = []
    for run in dict.fromkeys(reach.run for reach in found):
        own = [reach for reach in found if reach.run == run]
        for kind, name in (("bytes", "bytes"), ("flops", "FLOPs"), ("device_hours", "hours on devices")):
            ratios = [getattr(reach, f"{kind}_relative") for reach in own]
            shown = [MISSING if ratio is None else percent(ratio, 1) for ratio in ratios]
            if kind != "device_hours" or any(ratio is not None for ratio in ratios):
                cells.append((run, name, *shown))
    headings = ("run", "cost", *(share_name(share) for share in SHARES))
    title = f"{study.experiment}: cost to reach a share of the baseline's best {study.metric}, relative to the baseline"
    return Table(title, headings, tuple(cells))


def reach_chart(study: Study, found: tuple[Reach, ...]) -> Chart | None:
    """How many times fewer bytes and FLOPs than the baseline each run needs for each share of the baseline's best.

    These are the paper's figures on cost reduction. The line of a run ends at the last share that it reaches.
    """
    if not found:
        return None
    panels = tuple(
        Panel(f"times fewer {title}", _reductions(study, found, cost), (1, 1.25), log=True)
        for cost, title in (("bytes", "bytes"), ("flops", "FLOPs"))
    )
    title = f"{study.title}: cost to reach a share of the baseline's best {study.metric}"
    return Chart(title, f"share of the baseline's best {study.metric}", panels, tuple(map(share_name, SHARES)))


def bar_chart(study: Study, found: tuple[Reach, ...]) -> Chart | None:
    """The same for one cost as bars, a panel for each run; None unless the paper has such a figure (Figs. 11, 15)."""
    cost = study.paper.bars
    if not found or not cost:
        return None
    name = {"bytes": "bytes", "flops": "FLOPs"}[cost]
    panels = tuple(Panel("times fewer", (line,), (0, 1)) for line in _reductions(study, found, cost) if line.points)
    title = f"{study.title}: how many times fewer {name} than the baseline"
    axis = f"share of the baseline's best {study.metric}"
    return Chart(title, axis, panels, tuple(map(share_name, SHARES)), bars=True) if panels else None


def _reductions(study: Study, found: tuple[Reach, ...], cost: str) -> tuple[Line, ...]:
    """How many times less of a cost each run needs than its baseline, at the shares that it reaches."""
    style = dict(zip((series.label for series in study.series), styles(study), strict=True))
    lines = []
    for run in dict.fromkeys(reach.run for reach in found):
        own = {reach.share: getattr(reach, f"{cost}_relative") for reach in found if reach.run == run}
        points = [(place, 1 / own[share]) for place, share in enumerate(SHARES) if own[share]]
        lines.append(Line(run, style[run], tuple(points)))
    return tuple(lines)


def stage_table(study: Study, found: tuple[StageCost, ...]) -> Table | None:
    """Rounds, costs and peak memory of each stage, as text; None where no run grows."""
    if all(cost.stage == found[0].stage for cost in found):
        return None
    cells = [
        (
            cost.run,
            str(cost.stage),
            f"{cost.rounds:g}",
            f"{cost.warmup_rounds:g}",
            amount(cost.bytes, "B"),
            amount(cost.flops, "FLOP"),
            amount(cost.memory_bytes, "B") if cost.memory_bytes else MISSING,
            MISSING if cost.memory_relative is None else percent(cost.memory_relative, 1),
        )
        for cost in found
    ]
    headings = ("run", "stage", "rounds", "warm-up", "bytes", "FLOPs", "peak memory", "peak memory vs full model")
    return Table(f"{study.experiment}: what each stage costs", headings, tuple(cells))


def setting_tables(study: Study) -> tuple[Table, ...]:
    """The settings of the runs: first a table of those in which they differ, then one of those that all share."""
    runs = {series.label: dict(series.first.readable) for series in study.series}
    names = list(dict.fromkeys(name for own in runs.values() for name in own))
    shared = [name for name in names if len({own.get(name) for own in runs.values()}) == 1]
    differing = [name for name in names if name not in shared]
    made = []
    if differing:
        cells = [(label, *(own.get(name, MISSING) for name in differing)) for label, own in runs.items()]
        made.append(Table("Settings in which runs differ", ("run", *differing), tuple(cells)))
    if shared:
        own = next(iter(runs.values()))
        title = "Settings of every run" if len(runs) > 1 else "Settings"
        made.append(Table(title, ("setting", "value"), tuple((name, own[name]) for name in shared)))
    return tuple(made)


def share_name(share: float) -> str:
    """A share as text: `0.995` -> `99.5 %`; the whole is called `best`."""
    return "best" if share == 1 else f"{100 * share:.4g} %"


_PARTS: dict[str, type] = {
    "metric": Mean,
    "best": Mean,
    "relative": Relative,
    "reference": Relative,
    "area": Area,
    "printed": Printed,
}


def flat(value: Row | Reach | StageCost) -> dict[str, Any]:
    """A row as a flat dictionary of plain values, for CSV and JSON; its keys do not depend on what is missing."""
    found: dict[str, Any] = {}
    for field in fields(value):
        item = getattr(value, field.name)
        if field.name in _PARTS:
            names = [part.name for part in fields(_PARTS[field.name])]
            own = {f"{field.name}_{name}": getattr(item, name) if item else None for name in names}
        else:
            own = {field.name: list(item) if isinstance(item, tuple) else item}
        assert not found.keys() & own.keys(), "two fields of a row would share a column"
        found |= own
    return found


def csv_bytes(records: Sequence[dict[str, Any]]) -> bytes:
    """Records with the same keys as a CSV file; lists are separated by spaces, missing values are empty."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(records[0])
    for record in records:
        writer.writerow([_csv_cell(value) for value in record.values()])
    return text.getvalue().encode()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, list):
        return " ".join(str(item) for item in value)
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@")):
        return "'" + value  # a spreadsheet would run it as a formula, and names come from files
    return value


def _mean(value: Mean | None, unit: str) -> str:
    return spread(value.mean, value.std, unit) if value else MISSING


def _share(holder: Any, name: str) -> str:
    value = getattr(holder, name) if holder else None
    return MISSING if value is None else percent(value)


def _plain(value: float | None, unit: str) -> str:
    return MISSING if value is None else spread(value, None, unit)


def _rounds(row: Row) -> str:
    return str(row.rounds) if row.complete else f"{row.rounds} of {row.planned}"
