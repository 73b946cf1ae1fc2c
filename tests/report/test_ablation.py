"""The appendix' tables on the number of stages, on runs whose numbers are known."""

from __future__ import annotations

from pathlib import Path

from progfed import experiments
from progfed.report.ablation import ablation_tables
from progfed.report.collect import Point, Run
from progfed.report.curves import Series, Study

GIGA = 10**9


def series(name: str, points: list[tuple[float, int]], *, budget: int = 3, finished: bool = True) -> Series:
    """A run with these (metric, gigabytes so far) after each round."""
    made = tuple(
        Point(number, 1, False, metric, 0, 0, cost * GIGA, 0, 0.0)
        for number, (metric, cost) in enumerate(points, start=1)
    )
    run = Run(Path(name), "stages", name, "end-to-end", 0, "t", "accuracy", budget, budget, 1, (), made, finished)
    return Series(name, (run,))


BASELINE = series("end-to-end", [(10, 10), (40, 20), (50, 30)])
FOUR = series("s4", [(20, 5), (50, 12), (55, 22)])
EIGHT = series("s8-4000", [(20, 3), (45, 10), (49, 20), (51, 26)], budget=4)


def test_at_equal_rounds_each_run_stands_next_to_the_papers() -> None:
    table = ablation_tables(Study("stages", (BASELINE, FOUR), ()))[0]
    assert table.rows[0] == ("end-to-end", "3", "50.00", "52.08", "30.0 GB", "5368 GB")
    assert table.rows[1] == ("s4", "3", "55.00", "53.23", "22.0 GB", "4179 GB")


def test_the_cost_to_reach_the_baseline_is_that_of_the_first_round_that_does() -> None:
    table = ablation_tables(Study("stages", (BASELINE, FOUR, EIGHT), ()))[1]
    assert "50.00 %" in table.title
    assert table.rows[0][2:5] == ("3", "30.0 GB", "100.00 %")
    assert table.rows[1] == ("s4", "3", "2", "12.0 GB", "40.00 %", "3804 GB", "70.86 %")
    assert table.rows[2] == ("s8-4000", "4", "4", "26.0 GB", "86.67 %", "3421 GB", "63.73 %")


def test_at_equal_cost_each_run_has_the_metric_it_had_by_then() -> None:
    table = ablation_tables(Study("stages", (BASELINE, FOUR, EIGHT), ()))[2]
    assert [row[2] for row in table.rows] == ["40.00", "55.00", "49.00"]
    assert [row[3] for row in table.rows] == ["51.19", "53.23", "53.50"]


def test_a_run_that_never_gets_there_has_no_cost() -> None:
    never = series("s3", [(10, 1), (11, 2), (12, 3)])
    table = ablation_tables(Study("stages", (BASELINE, never), ()))[1]
    assert table.rows[1][2:] == ("–", "–", "–", "–", "–")


def test_unfinished_runs_leave_out_the_tables_that_need_them() -> None:
    half = series("end-to-end", [(10, 10)], finished=False)
    assert len(ablation_tables(Study("stages", (half,), ()))) == 1
    assert len(ablation_tables(Study("stages", (half, FOUR), ()))) == 2
    assert ablation_tables(Study("federated", (BASELINE,), ())) == ()


def test_the_papers_shares_are_those_it_prints() -> None:
    declared = experiments.paper("stages").stage_counts
    assert declared is not None
    printed = declared.rows
    assert {run: row.cost for run, row in printed.items() if row.to_baseline == row.cost} == {"end-to-end": 5368}
    assert printed["s4"].at_cost == printed["s4"].metric
