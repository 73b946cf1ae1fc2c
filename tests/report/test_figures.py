"""Figures: what is drawn stands where the records say, and reads on white and on dark."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from progfed.errors import UsageError
from progfed.report import write_report
from progfed.report.collect import collect
from progfed.report.curves import AXES, Study, studies
from progfed.report.frontier import frontier
from progfed.report.metric_figure import figure, styles
from progfed.report.numbers import amount, duration, log_ticks, ticks
from progfed.report.plots import written
from progfed.report.present import frontier_table
from progfed.report.svg import COLOURS, INK

from .report_runs import hostile, lines, stopped, tiny

SVG = "{http://www.w3.org/2000/svg}"


def one(folder: Path) -> Study:
    (study,) = studies(collect([folder]))
    return study


def drawn(svg: str) -> dict[str, list[tuple[float, float]]]:
    """The lines of a figure by colour, in pixels."""
    found = {}
    for path in ElementTree.fromstring(svg).iter(f"{SVG}path"):
        if path.get("fill") == "none":
            pairs = re.findall(r"(-?[\d.]+) (-?[\d.]+)", path.get("d", ""))
            found[path.get("stroke", "")] = [(float(x), float(y)) for x, y in pairs]
    return found


@pytest.mark.parametrize("axis", AXES, ids=lambda axis: axis.name)
def test_a_line_runs_through_the_means_of_the_records(trained: Path, axis) -> None:  # type: ignore[no-untyped-def]
    points = drawn(figure(one(trained), axis).svg())[COLOURS[1]]
    seeds = [lines(trained / f"lin-seed{seed}") for seed in (1, 2)]

    def cost(line: dict[str, object]) -> float:
        total = line["total"]
        assert isinstance(total, dict)
        known = {"bytes": total["down_bytes"] + total["up_bytes"], "round": line["round"]}
        return float(known.get(axis.name, total.get(axis.name)))  # type: ignore[arg-type]

    costs = [sum(cost(line) for line in both) / 2 for both in zip(*seeds, strict=True)]
    metrics = [sum(line["metric"] for line in both) / 2 for both in zip(*seeds, strict=True)]
    assert len(points) == len(costs)
    # an axis is linear: pixels and values have the same proportions, up to the tenth of a pixel that is written
    (left, _), (right, _) = points[0], points[-1]
    for (x, _), value in zip(points, costs, strict=True):
        assert x == pytest.approx(left + (value - costs[0]) / (costs[-1] - costs[0]) * (right - left), abs=0.11)
    low, high = metrics.index(min(metrics)), metrics.index(max(metrics))
    for (_, y), value in zip(points, metrics, strict=True):
        share = (value - metrics[low]) / (metrics[high] - metrics[low])
        assert y == pytest.approx(points[low][1] + share * (points[high][1] - points[low][1]), abs=0.11)


def test_growth_warm_up_and_the_last_value_are_marked(trained: Path) -> None:
    svg = figure(one(trained), AXES[0]).svg()
    texts = ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    finals = [lines(trained / f"lin-seed{seed}")[-1] for seed in (1, 2)]
    assert "stage 2" in texts
    assert svg.count("<title>warm-up</title>") == 1
    assert f"{sum(line['metric'] for line in finals) / 2:.1f} %" in texts
    assert amount(sum(line["total"]["down_bytes"] + line["total"]["up_bytes"] for line in finals) / 2, "B") in texts


def test_a_name_with_markup_is_only_text_in_a_figure(tmp_path: Path) -> None:
    name = '"><script>alert(1)</script>&amp;'
    stopped(hostile(tiny(), name), tmp_path / "run", 2)
    tree = ElementTree.fromstring(figure(one(tmp_path), AXES[0]).svg())
    assert not list(tree.iter(f"{SVG}script"))
    assert name in ["".join(text.itertext()) for text in tree.iter(f"{SVG}text")]


@pytest.mark.parametrize("baselines", [1, 5])
def test_ten_runs_are_told_apart_whatever_they_are_compared_with(tmp_path: Path, baselines: int) -> None:
    for number in range(10):
        run, baseline = f"run{number}", f"run{number % baselines}" if number >= baselines else ""
        stopped(replace(tiny(), run=run, baseline=baseline), tmp_path / run, 1)
    assert len(set(styles(one(tmp_path)))) == 10


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("ground", ["#ffffff", "#0d1117"])
@pytest.mark.parametrize("colour", [*COLOURS, INK])
def test_every_colour_stands_out_three_to_one(colour: str, ground: str) -> None:
    dark, light = sorted((luminance(colour), luminance(ground)))
    assert (light + 0.05) / (dark + 0.05) >= 3


@given(low=st.floats(-1e6, 1e6), span=st.floats(1e-3, 1e12), number=st.integers(3, 10))
def test_ticks_are_inside_the_range_and_equally_far_apart(low: float, span: float, number: int) -> None:
    found = ticks(low, low + span, number)
    air = 1e-6 * max(abs(low), span)
    assert 1 <= len(found) <= number + 1
    assert all(low - air <= value <= low + span + air for value in found)
    steps = [after - before for before, after in pairwise(found)]
    assert all(step == pytest.approx(steps[0], rel=1e-6, abs=air) for step in steps)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.04, "0.0 s"), (59.9, "59.9 s"), (60, "1:00"), (3599.6, "1:00:00"), (7322, "2:02:02")]
)
def test_durations_read_like_a_clock(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(("kind", "magic"), [("pdf", b"%PDF-"), ("png", b"\x89PNG\r\n")])
def test_matplotlib_writes_the_same_file_for_the_same_records(trained: Path, kind: str, magic: bytes) -> None:
    drawing = figure(one(trained), AXES[0])
    data = written(drawing, kind)
    assert data.startswith(magic)
    assert written(drawing, kind) == data


def test_dollars_and_underscores_in_names_do_not_upset_matplotlib(tmp_path: Path) -> None:
    stopped(hostile(tiny(), "_$\\frac$"), tmp_path / "run", 2)
    assert written(figure(one(tmp_path), AXES[0]), "png").startswith(b"\x89PNG")


def test_without_matplotlib_a_pdf_is_refused_by_naming_the_extra(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"progfed\[plots\]"):
        write_report([trained], tmp_path / "out", formats=["svg", "pdf"])
    assert not (tmp_path / "out").exists()
    names = {path.name for path in write_report([trained], tmp_path / "out")}
    drawn = {f"tiny-{axis}.svg" for axis in ("bytes", "round", "flops", "reach")}
    assert {"report.html", "results.csv", "reach.csv", "stages.csv", *drawn} == names


def test_an_unknown_format_is_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="svg, pdf, png, not 'gif'"):
        write_report([trained], tmp_path, formats=["gif"])


def cheaper(study: Study, times: int) -> Study:
    """The same study, of which the first run took so many times fewer bytes."""
    first, *others = study.series
    runs = tuple(
        replace(
            run,
            points=tuple(
                replace(point, down_bytes=int(point.down_bytes / times), up_bytes=int(point.up_bytes / times))
                for point in run.points
            ),
        )
        for run in first.runs
    )
    return replace(study, series=(replace(first, runs=runs), *others))


def test_bytes_are_drawn_on_a_logarithmic_axis_where_runs_differ_by_more_than_ten_times(trained: Path) -> None:
    study = cheaper(one(trained), 40)
    assert study.log_bytes
    assert not one(trained).log_bytes
    lines = drawn(figure(study, AXES[0]).svg())
    for series, style in zip(study.series, styles(study), strict=True):
        pixels, costs = [x for x, _ in lines[style.colour]], [point.at["bytes"] for point in series.points]
        whole = math.log(costs[-1] / costs[0])
        for pixel, cost in zip(pixels, costs, strict=True):
            share = math.log(cost / costs[0]) / whole
            assert pixel == pytest.approx(pixels[0] + share * (pixels[-1] - pixels[0]), abs=0.2)


def test_the_frontier_is_what_no_other_point_is_better_than_for_as_few_bytes(trained: Path) -> None:
    study = cheaper(one(trained), 40)
    points = [(point.at["bytes"], point.metric.mean) for series in study.series for point in series.points]
    best = {max(metric for cost, metric in points if cost <= budget) for budget, _ in points}
    found = frontier(study)
    assert {front.metric for front in found} == best
    for front in found:
        assert front.bytes == min(cost for cost, metric in points if metric >= front.metric)
        assert front.point in front.series.points
    assert frontier(one(trained)) == ()
    assert frontier_table(one(trained)) is None


def test_the_table_of_the_frontier_has_the_best_within_each_round_budget(trained: Path) -> None:
    study = cheaper(one(trained), 40)
    table = frontier_table(study)
    assert table is not None
    assert table.headings == ("for at most", "accuracy %", "run", "round", "stage")
    metrics = [float(row[1].split(" ")[0]) for row in table.rows]
    assert metrics == sorted(metrics)
    assert metrics[-1] == pytest.approx(max(front.metric for front in frontier(study)), abs=0.005)
    assert {row[2] for row in table.rows} <= {series.label for series in study.series}


def test_the_frontier_is_drawn_in_steps_against_bytes_and_nothing_else(trained: Path) -> None:
    study = cheaper(one(trained), 40)
    dashes = 'stroke-dasharray="3 3"'
    steps = figure(study, AXES[0]).svg().count(dashes)
    assert len(frontier(study)) <= steps <= 2 * len(frontier(study))
    assert dashes not in figure(study, AXES[1]).svg()
    assert dashes not in figure(one(trained), AXES[0]).svg()


@given(st.floats(1, 1e12), st.floats(11, 1e6))
def test_logarithmic_ticks_are_at_least_two_round_values_inside_the_range(low: float, times: float) -> None:
    found = log_ticks(low, low * times)
    assert len(found) >= 2
    assert all(low <= value <= low * times and f"{value:.15e}"[0] in "125" for value in found)
