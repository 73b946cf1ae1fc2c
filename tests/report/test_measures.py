"""Reports on metrics that are errors, or several: names, units, directions, and no shares where they mean nothing."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from progfed import Metric
from progfed.cli import app
from progfed.metrics import mae
from progfed.report import make_report, write_report
from progfed.report.curves import Study
from progfed.report.page import study_json
from progfed.report.present import result_table
from progfed.report.tables import reaches, rows
from progfed.runs.train import run
from regression import ERRORS, line_experiment


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lines")
    for grows in (False, True):
        run(line_experiment(grows=grows), root / f"grows-{grows}")
    return root


@pytest.fixture
def study(runs: Path) -> Study:
    return make_report([runs]).studies[0]


def test_every_metric_has_its_columns_with_name_and_unit(study: Study, runs: Path) -> None:
    table = result_table(study, rows(study))
    assert table.headings[2:6] == ("rmse", "best", "mae", "best mae")
    last = json.loads((runs / "grows-False" / "summary.json").read_text())
    assert table.rows[0][2:6:2] == (f"{last['metrics']['rmse']:.4g}", f"{last['metrics']['mae']:.4g}")
    assert table.rows[0][3] == f"{last['best_metric']:.4g}"
    assert not any("%" in heading for heading in table.headings if "same bytes" in heading)


def test_the_cost_to_reach_a_share_of_an_error_is_left_out_with_a_note(study: Study, runs: Path) -> None:
    assert [reaches(view) for view in study.views] == [(), ()]
    notes = "\n".join(make_report([runs]).notes)
    for name in ("rmse", "mae"):
        assert f"growing: no costs to reach a share of the baseline's best {name}, since lower is better" in notes


def test_every_metric_is_drawn_and_written(runs: Path, tmp_path: Path) -> None:
    names = {path.name for path in write_report([runs], tmp_path)}
    assert {"line-bytes.svg", "line-mae-bytes.svg", "metrics.csv"} <= names
    assert "reach.csv" not in names
    drawn = (tmp_path / "line-mae-bytes.svg").read_text()
    assert "mae against bytes" in drawn
    assert "%" not in drawn.split("<text", 1)[1]
    told = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert [(row["run"], row["metric"]) for row in told] == [
        ("whole", "rmse"),
        ("growing", "rmse"),
        ("whole", "mae"),
        ("growing", "mae"),
    ]


def test_the_page_knows_unit_and_values_of_every_chart(study: Study) -> None:
    charts = [study_json(chart) for chart in study.charts]
    assert [(chart["metric"], chart["unit"]) for chart in charts] == [("rmse", ""), ("mae", "")]
    assert charts[0]["curves"][0]["mean"] != charts[1]["curves"][0]["mean"]


def test_a_metric_of_which_higher_is_better_keeps_its_reach_table(tmp_path: Path) -> None:
    metrics = {"closeness": Metric(closeness, unit="%"), **ERRORS}
    for grows in (False, True):
        run(line_experiment(grows=grows, metrics=metrics), tmp_path / f"grows-{grows}")
    study = make_report([tmp_path]).studies[0]
    assert [view.metric for view in study.views] == ["closeness", "mae", "rmse"]
    assert [bool(reaches(view)) for view in study.views] == [True, False, False]


def closeness(outputs, targets):  # type: ignore[no-untyped-def]
    return 1 / (1 + mae(outputs, targets))


def test_runs_with_other_metrics_are_not_averaged(tmp_path: Path) -> None:
    for seed, metrics in ((0, ERRORS), (1, {"mae": ERRORS["mae"]})):
        experiment = line_experiment(metrics=metrics)
        recipe = replace(experiment.recipe, seed=seed)
        run(replace(experiment, recipe=recipe), tmp_path / str(seed))
    assert len(make_report([tmp_path]).studies[0].series) == 2


OWN = """
import torch
from torch import nn
import progfed
from progfed.metrics import mae, rmse
inputs = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
EXPERIMENT = progfed.Experiment(
    name="line",
    model=progfed.Progressive((lambda: nn.Linear(4, 3),), (lambda: nn.Linear(3, 1),), torch.zeros(1, 4), name="line"),
    data=progfed.from_clients([(inputs, inputs[:, :1])], test=(inputs, inputs[:, :1])),
    recipe=progfed.Recipe(
        schedule=progfed.end_to_end(2, stages=1), cohort=1, local=progfed.Local(loss=nn.functional.mse_loss)
    ),
    metrics={"rmse": progfed.Metric(rmse, higher_is_better=False, unit="mm"), "mae": progfed.Metric(mae)},
)
"""


def test_the_terminal_tells_metrics_by_name_and_unit(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    arguments = ["run", str(tmp_path / "own.py"), "--out", str(tmp_path / "out"), "--workers", "1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "out" / "run-seed0" / "summary.json").read_text())
    told = f"rmse {summary['metrics']['rmse']:.4g} mm, mae {summary['metrics']['mae']:.4g}"
    assert f"run: {told} after 2 rounds" in result.stdout
    assert f"{told}  " in result.output  # the line of the last round
