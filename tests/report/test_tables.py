"""The numbers of the tables, against the records and by hand."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from progfed import experiments
from progfed.experiments.printed import Printed
from progfed.report import make_report
from progfed.report.collect import Found, Point, Run, collect
from progfed.report.curves import Study, mean_of, studies
from progfed.report.notes import notes
from progfed.report.panels import Line, Panel, drawn
from progfed.report.per_stage import stage_costs
from progfed.report.plots import written
from progfed.report.present import (
    area_table,
    bar_chart,
    csv_bytes,
    flat,
    reach_chart,
    reach_table,
    result_table,
    stage_table,
)
from progfed.report.svg import COLOURS, Bar, Style
from progfed.report.tables import reaches, rows

from .report_runs import lines, stopped, summary, tiny


def one(folder: Path) -> Study:
    (study,) = studies(collect([folder]))
    return study


def made(name: str, metrics: list[float], sent: list[int], **given: object) -> Run:
    """A finished run with one evaluated point per metric, for closed forms."""
    points = tuple(
        Point(i + 1, 1, False, metric, cost, 0, cost, 10 * cost, float(i))
        for i, (metric, cost) in enumerate(zip(metrics, sent, strict=True))
    )
    values: dict[str, object] = {
        "path": Path(name),
        "experiment": "made",
        "name": name,
        "baseline": "",
        "seed": 1,
        "task": "data",
        "metric": "accuracy",
        "budget": len(metrics),
        "planned": len(metrics),
        "final_stage": 1,
        "settings": (),
        "points": points,
        "finished": True,
    }
    return Run(**(values | given))  # type: ignore[arg-type]


def study_of(*runs: Run) -> Study:
    (study,) = studies(Found(runs, ()))
    return study


def test_metrics_are_mean_and_sample_deviation_over_the_seeds(trained: Path) -> None:
    for row in rows(one(trained)):
        finals = [summary(trained / f"{row.run}-seed{seed}") for seed in (1, 2)]
        assert row.metric is not None
        assert row.best is not None
        assert row.metric.mean == pytest.approx(np.mean([final["metric"] for final in finals]))
        assert row.metric.std == pytest.approx(np.std([final["metric"] for final in finals], ddof=1))
        assert row.best.mean == pytest.approx(np.mean([final["best_metric"] for final in finals]))
        assert row.seeds == (1, 2)


def test_relative_costs_are_ratios_of_what_the_summaries_say(trained: Path) -> None:
    baseline, ours = rows(one(trained))
    cost = {name: [summary(trained / f"{name}-seed{s}")["cost"] for s in (1, 2)] for name in ("lin", "lin-end-to-end")}

    def mean(name: str, *keys: str) -> float:
        return float(np.mean([sum(one[key] for key in keys) for one in cost[name]]))

    assert (baseline.run, ours.run) == ("lin-end-to-end", "lin")
    assert baseline.relative is None
    assert ours.relative is not None
    for field, keys in {
        "bytes": ("down_bytes", "up_bytes"),
        "paper_bytes": ("paper_bytes",),
        "flops": ("flops",),
        "seconds": ("seconds",),
    }.items():
        assert getattr(ours.relative, field) == pytest.approx(mean("lin", *keys) / mean("lin-end-to-end", *keys))
    assert ours.relative.bytes is not None
    assert ours.relative.bytes < 1


def test_the_cost_to_reach_a_share_is_that_of_the_first_point_that_has_it() -> None:
    slow = made("x-end-to-end", [20, 60, 80], [100, 200, 300])
    fast = made("x", [50, 60, 90], [10, 40, 150], baseline="x-end-to-end")
    found = {reach.share: reach for reach in reaches(study_of(slow, fast))}
    # half of 80 is 40: 10 bytes against 200; 60 % is 48: again the first point; 90 % is 72, and the best is 80
    assert found[0.5].bytes_relative == 10 / 200
    assert found[0.6].bytes_relative == 10 / 200
    assert found[0.7].target == pytest.approx(56)
    assert found[0.7].bytes_relative == 40 / 200
    assert found[0.9].bytes_relative == 150 / 300
    assert found[1.0].flops_relative == 1500 / 3000


def test_a_share_that_is_never_reached_has_no_cost() -> None:
    study = study_of(made("x-end-to-end", [80], [100]), made("x", [50], [10], baseline="x-end-to-end"))
    found = {reach.share: reach for reach in reaches(study)}
    assert found[0.6].bytes == 10
    assert found[0.7].bytes is None
    assert found[1.0].bytes_relative is None
    table = reach_table(study, reaches(study))
    assert table is not None
    assert table.rows[0] == ("x", "bytes", "10.0 %", "10.0 %", *["–"] * 8)


def test_the_figure_of_cost_reduction_has_the_inverse_of_the_relative_costs() -> None:
    slow = made("x-end-to-end", [20, 60, 80], [100, 200, 300])
    fast = made("x", [50, 60, 70], [10, 40, 150], baseline="x-end-to-end")
    study = study_of(slow, fast)
    chart = reach_chart(study, reaches(study))
    assert chart is not None
    assert chart.names[:2] == ("50 %", "60 %")
    (line,) = chart.panels[0].lines
    # 50 and 60 % by 10 instead of 200 bytes, 70 % (56) by 40, 80 % (64) by 150 instead of 300; 90 % is never reached
    assert [place for place, _ in line.points] == [0, 1, 2, 3]
    assert [times for _, times in line.points] == pytest.approx([20, 20, 5, 2])
    svg = drawn(chart).svg()
    assert svg.count("<circle") == 8
    assert "x, 80 %: 2<" in svg
    assert written(drawn(chart), "pdf").startswith(b"%PDF-")
    assert written(drawn(chart), "png") == written(drawn(chart), "png")


def test_compressed_runs_are_all_measured_by_the_end_to_end_run_in_floats() -> None:
    named = {"experiment": "compression"}
    study = study_of(
        made("float-end-to-end", [40, 80], [100, 200], **named),
        made("lq-8-end-to-end", [40, 70], [25, 50], **named),
        made("lq-8", [40, 80], [10, 20], baseline="lq-8-end-to-end", **named),
    )
    found = {(reach.run, reach.share): reach for reach in reaches(study)}
    assert {reach.baseline for reach in found.values()} == {"float-end-to-end"}
    assert found["lq-8", 1.0].bytes_relative == 20 / 200
    assert found["lq-8-end-to-end", 0.5].bytes_relative == 25 / 100
    assert found["lq-8-end-to-end", 1.0].bytes is None


@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=5), st.booleans())
def test_marks_and_values_of_a_panel_are_inside_its_range(values: list[float], log: bool) -> None:
    line = Line("x", Style("#000000", False), tuple((place, value) for place, value in enumerate(values)))
    panel = Panel("some", (line,), (1.0, 1.25), log)
    low, high = panel.range
    assert all(low <= value <= high for value in values)
    air = 1e-6 * (high - low)
    assert all(low - air <= mark <= high + air for mark in panel.marks)
    assert len(panel.marks) >= 1


def test_the_baseline_at_the_same_bytes_is_its_last_point_within_them() -> None:
    study = study_of(
        made("x-end-to-end", [20, 60, 80], [100, 200, 300]), made("x", [50, 90], [10, 250], baseline="x-end-to-end")
    )
    assert rows(study)[1].baseline_at_same_bytes == 60


def test_curves_are_means_over_the_same_seeds_at_every_point() -> None:
    first, second = made("x", [10, 20, 30], [1, 2, 3]), made("x", [20, 40], [3, 4], seed=2)
    unfinished = study_of(*(run for run in (first, second)))
    (series,) = unfinished.series
    assert [point.metric.mean for point in series.points] == [15, 30]
    assert [point.at["bytes"] for point in series.points] == [2, 3]


def test_an_unfinished_seed_is_not_in_the_means_and_is_named(runs: Path) -> None:
    stopped(tiny(seed=3), runs / "lin-seed3", 2)
    study = one(runs)
    assert rows(study)[1].seeds == (1, 2)
    assert any("seed 3 has 2 of 9 rounds, and is not in the means" in note for note in notes(study))


def test_only_half_a_run_has_no_relative_costs_and_says_so(tmp_path: Path, trained: Path) -> None:
    shutil.copytree(trained / "lin-end-to-end-seed1", tmp_path / "baseline")
    stopped(tiny(), tmp_path / "half", 3)
    study = one(tmp_path)
    row = rows(study)[1]
    assert row.relative is None
    assert (row.rounds, row.planned, row.complete) == (3, 9, False)
    assert row.down_bytes == lines(tmp_path / "half")[-1]["total"]["down_bytes"]
    assert any("relative costs need a finished run" in note for note in notes(study))
    assert result_table(study, rows(study)).rows[1][-1] == "3 of 9"


def test_a_run_that_has_not_finished_a_round_is_reported_as_such(tmp_path: Path, trained: Path) -> None:
    (tmp_path / "empty").mkdir()
    shutil.copy(trained / "lin-seed1" / "experiment.json", tmp_path / "empty")
    report = make_report([tmp_path])
    assert rows(report.studies[0])[0].metric is None
    assert any("0 of 9 rounds" in note for note in report.notes)


def test_a_missing_baseline_and_a_single_seed_are_named(tmp_path: Path, trained: Path) -> None:
    shutil.copytree(trained / "lin-seed1", tmp_path / "only")
    said = " | ".join(notes(one(tmp_path)))
    assert "no run of its baseline lin-end-to-end" in said
    assert "one seed, so no standard deviation: lin" in said


def test_different_settings_under_one_name_are_shown_apart(edited, runs: Path) -> None:  # type: ignore[no-untyped-def]
    edited("lin-seed2", lambda described: described["recipe"].update(cohort=3))
    study = one(runs)
    assert [series.label for series in study.series] == ["lin-end-to-end", "lin (settings 1)", "lin (settings 2)"]
    assert any("recipe.cohort 2 and 3" in note for note in study.notes)


def test_a_seed_in_two_folders_counts_once_and_the_finished_one_is_used(runs: Path) -> None:
    stopped(tiny(), runs / "again", 2)
    study = one(runs)
    assert rows(study)[1].seeds == (1, 2)
    assert study.series[1].counted[0].path == runs / "lin-seed1"
    assert any("seed 1 is in two folders" in note for note in study.notes)


def test_experiments_do_not_mix(trained: Path, tmp_path: Path) -> None:
    stopped(tiny(name="other", grows=False), tmp_path / "other", 2)
    found = studies(collect([trained, tmp_path]))
    assert [study.experiment for study in found] == ["tiny", "other"]
    assert [len(study.series) for study in found] == [2, 1]


def test_runs_on_different_data_share_a_table_but_not_a_chart() -> None:
    study = study_of(
        made("cifar10", [1], [1], task="cifar"),
        made("cifar10-end-to-end", [1], [1], task="cifar"),
        made("brats-symmetric", [1], [1], task="brats", metric="dice"),
    )
    assert [panel.part for panel in study.panels] == ["brats-symmetric", "cifar10"]
    assert study.metric == "dice or accuracy"


def test_the_stages_of_a_run_add_up_to_the_run(trained: Path) -> None:
    study = one(trained)
    for row in rows(study):
        stages = [cost for cost in stage_costs(study) if cost.run == row.run]
        assert sum(cost.bytes for cost in stages) == row.down_bytes + row.up_bytes
        assert sum(cost.flops for cost in stages) == row.flops
        assert sum(cost.rounds + cost.warmup_rounds for cost in stages) == row.rounds
        assert max(cost.memory_bytes for cost in stages) == row.memory_bytes


def test_peak_memory_is_the_highest_of_the_records_and_early_stages_have_less(trained: Path) -> None:
    study = one(trained)
    baseline, ours = rows(study)
    highest = {
        name: max(line["memory_bytes"] for line in lines(trained / f"{name}-seed1"))
        for name in (ours.run, baseline.run)
    }
    assert (ours.memory_bytes, baseline.memory_bytes) == (highest[ours.run], highest[baseline.run])
    first, second = (cost for cost in stage_costs(study) if cost.run == ours.run)
    assert first.memory_relative is not None
    assert first.memory_relative == first.memory_bytes / baseline.memory_bytes < 1
    assert second.memory_relative == 1
    table = stage_table(study, stage_costs(study))
    assert table is not None
    assert table.rows[1][:4] == (ours.run, "1", "2", "0")


def test_runs_from_before_memory_was_recorded_are_reported_without_it(runs: Path) -> None:
    for path in runs.rglob("rounds.jsonl"):
        older = [
            json.dumps({key: value for key, value in line.items() if key != "memory_bytes"})
            for line in lines(path.parent)
        ]
        path.write_text("".join(f"{line}\n" for line in older))
    study = one(runs)
    assert "peak memory" not in result_table(study, rows(study)).headings
    table = stage_table(study, stage_costs(study))
    assert table is not None
    assert {row[-2:] for row in table.rows} == {("–", "–")}


def test_csv_holds_the_rows_exactly(trained: Path) -> None:
    found = rows(one(trained))
    read = list(csv.DictReader(io.StringIO(csv_bytes([flat(row) for row in found]).decode(), newline="")))
    for row, line in zip(found, read, strict=True):
        assert row.metric is not None
        assert float(line["metric_mean"]) == row.metric.mean
        assert float(line["down_bytes"]) == row.down_bytes
        assert line["seeds"] == "1 2"
    assert read[0]["relative_bytes"] == ""


def test_a_name_in_csv_is_no_formula() -> None:
    assert csv_bytes([{"run": "=1+1"}]).decode().splitlines() == ["run", "'=1+1"]


# The paper prints each seed in its appendix: an independent way to its means and deviations.
SEEDS = {
    ("centralized", "resnet18-end-to-end"): (75.95, 76.12, 76.17),
    ("centralized", "resnet18"): (75.57, 76.13, 75.83),
    ("centralized", "resnet152-end-to-end"): (77.69, 77.44, 78.19),
    ("centralized", "resnet152"): (78.95, 78.46, 78.31),
    ("centralized", "vgg16-end-to-end"): (71.94, 71.77, 71.65),
    ("centralized", "vgg16"): (71.36, 72.05, 71.21),
    ("centralized", "vgg19-end-to-end"): (69.47, 71.25, 71.70),
    ("centralized", "vgg19"): (71.30, 70.45, 70.95),
    ("federated", "emnist-end-to-end"): (85.63, 85.77, 85.85),
    ("federated", "emnist"): (85.65, 85.62, 85.73),
    ("federated", "cifar10-end-to-end"): (84.62, 84.82, 84.56),
    ("federated", "cifar10"): (84.64, 84.73, 85.19),
    ("federated", "cifar100-end-to-end"): (51.79, 51.86, 52.58),
    ("federated", "cifar100"): (53.33, 53.16, 53.21),
    ("federated", "brats-symmetric-end-to-end"): (87.29, 86.51, 86.51),
    ("federated", "brats-asymmetric"): (88.19, 87.22, 87.57),
    ("federated", "brats-symmetric"): (87.92, 87.98, 87.98),
}


@pytest.mark.parametrize("key", SEEDS)
def test_the_papers_figures_are_the_means_of_its_printed_seeds(key: tuple[str, str]) -> None:
    experiment, run = key
    printed, expected = experiments.paper(experiment).rows[run], mean_of(SEEDS[key])
    assert printed.metric == pytest.approx(expected.mean, abs=0.0051)
    assert printed.std == pytest.approx(expected.std, abs=0.0061)


def test_the_papers_tables_agree_with_each_other() -> None:
    def get(experiment: str, run: str) -> Printed:
        return experiments.paper(experiment).rows[run]

    for run in ("cifar100", "cifar100-end-to-end"):
        same = {get("federated", run).metric, get("optimizers", run.replace("cifar100", "cifar100-fedavg")).metric}
        assert same == {get("compression", run.replace("cifar100", "float")).metric}
    assert get("strategies", "end-to-end").metric == get("centralized", "resnet18-end-to-end").metric
    assert get("stages", "s4").metric == get("federated", "cifar100").metric
    codecs = ("float", "lq-8", "lq-4", "lq-2", "sp-25", "sp-10", "lq-8+sp-25", "lq-8+sp-10")
    for codec in codecs:
        after, before = get("compression", codec).bytes, get("compression", f"{codec}-end-to-end").bytes
        assert after is not None
        assert before is not None
        assert after / before == pytest.approx(0.771, abs=0.002)


def test_a_run_of_the_paper_stands_next_to_its_printed_figure(edited, runs: Path) -> None:  # type: ignore[no-untyped-def]
    for folder in ("lin-seed1", "lin-seed2"):
        edited(
            folder, lambda described: described.update(name="federated", run="cifar10", baseline="cifar10-end-to-end")
        )
    study = next(study for study in make_report([runs]).studies if study.experiment == "federated")
    table = result_table(study, rows(study))
    shown = dict(zip(table.headings, table.rows[0], strict=True))
    assert shown["paper accuracy %"] == "84.85 ± 0.30"
    assert shown["paper: bytes"] == "70.30 %"
    said = " | ".join(notes(study))
    assert "T is 8, the paper's figures are for T 2000: cifar10" in said
    assert "no run of emnist-end-to-end, emnist" in said


def test_the_papers_figure_and_the_runs_own_bytes_in_its_accounting_are_two_columns(edited, runs: Path) -> None:  # type: ignore[no-untyped-def]
    for folder in ("lin-seed1", "lin-seed2"):
        edited(folder, lambda described: described.update(name="federated", run="cifar10", baseline=""))
    study = next(study for study in make_report([runs]).studies if study.experiment == "federated")
    (row,) = rows(study)
    told = flat(row)
    assert told["paper_bytes"] == row.paper_bytes == lines(runs / "lin-seed1")[-1]["total"]["paper_bytes"]
    assert told["printed_bytes"] == pytest.approx(0.703)
    (read,) = csv.DictReader(io.StringIO(csv_bytes([told]).decode(), newline=""))
    assert float(read["paper_bytes"]) == row.paper_bytes


def test_wall_time_stands_beside_the_papers_where_it_prints_one() -> None:
    named = {"experiment": "centralized"}
    study = study_of(
        made("vgg16-end-to-end", [20, 60, 80], [100, 200, 300], **named),
        made("vgg16", [50, 60], [10, 40], baseline="vgg16-end-to-end", **named),
    )
    table = result_table(study, rows(study))
    shown = dict(zip(table.headings, table.rows[1], strict=True))
    assert (shown["time vs baseline"], shown["paper: time"]) == ("50.00 %", "85.43 %")
    plain = study_of(made("x", [50], [10]))
    assert "time vs baseline" not in result_table(plain, rows(plain)).headings


def test_the_area_under_a_curve_is_its_mean_height_over_the_costs_that_both_cover() -> None:
    study = study_of(
        made("x-end-to-end", [0, 40, 80], [100, 200, 300]),
        made("x", [50, 60, 90], [50, 150, 250], baseline="x-end-to-end"),
    )
    area = rows(study)[1].area
    assert area is not None
    # from 100 to 250 bytes: ours rises from 55 to 60 at 150 and to 90 at 250; the baseline from 0 by 0.4 a byte to 60
    assert area.bytes == pytest.approx((57.5 * 50 + 75 * 100) / 150)
    assert area.baseline_bytes == pytest.approx(30)
    assert (area.flops, area.baseline_flops) == (pytest.approx(area.bytes), pytest.approx(30))
    table = area_table(study, rows(study))
    assert table is not None
    assert table.rows == (("x", "69.17", "30.00", "69.17", "30.00"),)


def test_curves_that_cover_no_common_cost_have_no_area() -> None:
    study = study_of(made("x-end-to-end", [0, 40], [100, 200]), made("x", [50, 60], [10, 20], baseline="x-end-to-end"))
    area = rows(study)[1].area
    assert area is not None
    assert area.bytes is None


def test_cost_reduction_is_drawn_as_bars_where_the_paper_has_bars() -> None:
    named = {"experiment": "centralized"}
    study = study_of(
        made("vgg16-end-to-end", [20, 60, 80], [100, 200, 300], **named),
        made("vgg16", [50, 60, 90], [10, 40, 150], baseline="vgg16-end-to-end", **named),
    )
    chart = bar_chart(study, reaches(study))
    assert chart is not None
    bars = [shape for shape in drawn(chart).shapes if isinstance(shape, Bar)]
    # 50 and 60 % by 10 instead of 200 bytes, 70 % by 40; from 80 % on by 150 instead of 300
    assert [bar.title.split(": ")[1] for bar in bars] == ["20", "20", "5", *["2"] * 7]
    heights = [bar.height for bar in bars]
    assert heights == pytest.approx([heights[0] * times / 20 for times in (20, 20, 5, *[2] * 7)])
    assert [bar.colour for bar in bars] == [*[COLOURS[0]] * 9, COLOURS[1]]
    plain = study_of(made("x-end-to-end", [80], [100]), made("x", [80], [10], baseline="x-end-to-end"))
    assert bar_chart(plain, reaches(plain)) is None


@pytest.mark.parametrize("name", experiments.NAMES)
def test_what_an_experiment_declares_of_the_paper_is_about_its_own_runs(name: str) -> None:
    paper, known = experiments.paper(name), {run.run for run in experiments.load(name)}
    assert set(paper.rows) <= known
    assert {paper.reference} <= {"", *known}
    if counts := paper.stage_counts:
        assert {counts.baseline, counts.budget} <= set(counts.rows) == set(paper.rows)


def test_the_committed_results_have_the_columns_of_a_report(trained: Path) -> None:
    columns = list(flat(rows(one(trained))[0]))
    for path in (Path(__file__).parents[2] / "docs" / "results").glob("*.csv"):
        if not path.stem.endswith("-reach"):
            assert path.read_text().splitlines()[0].split(",") == columns, path.name
