"""What a report and the last line of `progfed run` tell of a run: its best, parameters, rejected updates, settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import progfed
from progfed import experiments
from progfed.cli import app
from progfed.report import make_report, write_report
from progfed.report.readable import readable
from progfed.report.tables import reaches, rows
from progfed.runs.experiment import Experiment
from progfed.runs.identity import describe
from progfed.runs.plan import plan
from progfed.runs.train import run
from progfed.schedule import as_published, progressive
from tiny import tiny_experiment, tiny_recipe

from .report_runs import lines, summary, tiny

evaluations: list[float] = []


def falling(outputs: Tensor, targets: Tensor) -> Tensor:
    """A metric that is best when it is asked first: for the first temporary head."""
    evaluations.append(1.0 / (len(evaluations) + 1))
    return torch.full((len(targets),), evaluations[-1])


def test_the_best_metric_is_one_of_the_final_model(tmp_path: Path) -> None:
    run(replace(tiny(), metric=falling), tmp_path / "run")
    recorded = lines(tmp_path / "run")
    final = max(line["metric"] for line in recorded if line["stage"] == 2)
    assert max(line["metric"] for line in recorded) > final
    assert summary(tmp_path / "run")["best_metric"] == final
    (row,) = rows(make_report([tmp_path]).studies[0])
    assert row.best is not None
    assert row.best.mean == final


def test_before_the_final_model_is_evaluated_there_is_no_best(runs: Path) -> None:
    for path in runs.rglob("rounds.jsonl"):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines(path.parent) if line["stage"] == 1))
    (study,) = make_report([runs / "lin-seed1", runs / "lin-seed2"]).studies
    (row,) = rows(study)
    assert row.metric is not None
    assert row.best is None
    assert reaches(study) == ()


def normalised() -> Experiment:
    """A split network with BatchNorm, whose statistics travel like parameters but are none."""
    net = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
    )
    data = tiny().data
    assert isinstance(data, progfed.FederatedData)
    recipe = replace(tiny().recipe, schedule=progfed.progressive(4, stages=2))
    return replace(tiny(), model=progfed.split(net, stages=2, example=torch.zeros(2, 4)), data=data, recipe=recipe)


def test_plan_and_summary_count_the_same_parameters_and_no_statistics(tmp_path: Path) -> None:
    experiment = normalised()
    learned = 4 * 8 + 8 + 2 * 8 + 8 * 8 + 8 + 2 * 8 + 8 * 2 + 2
    assert run(experiment, tmp_path)["parameters"] == plan(experiment)["stages"][-1]["parameters"] == learned


OWN = """
import torch
from torch import nn
import progfed

inputs = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
targets = (inputs[:, 0] > 0).long()
broken = torch.full((10, 4), 1e38)  # finite, and too much for the sums of a layer
clients = [(inputs[:10], targets[:10]), (inputs[10:20], targets[10:20]), (broken, targets[:10])]
EXPERIMENT = progfed.Experiment(
    name="own",
    model=progfed.split(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))), stages=2, example=inputs[:1]),
    data=progfed.from_clients(clients, (inputs, targets), classes=2),
    recipe=progfed.Recipe(schedule=progfed.progressive(4, stages=2), cohort=3),
)
"""


def test_a_client_that_is_rejected_in_every_round_is_told_on_the_terminal_and_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["run", str(tmp_path / "own.py"), "--out", str(out), "--workers", "1"])
    assert result.exit_code == 0
    assert "run: 4 updates were rejected, in 4 of 4 rounds: " in result.stdout
    (told,) = [note for note in make_report([out]).notes if "rejected" in note]
    assert told.startswith("own: run, seed 0: 4 updates were rejected, in 4 of 4 rounds: ")
    page = write_report([out], tmp_path / "report")[0].read_text()
    assert "4 updates were rejected, in 4 of 4 rounds" in page


def test_where_no_update_was_rejected_nothing_is_said_of_it(trained: Path) -> None:
    assert not any("rejected" in note for note in make_report([trained]).notes)


def test_the_page_shows_what_every_run_was_asked_and_where_runs_differ(trained: Path, tmp_path: Path) -> None:
    page = write_report([trained], tmp_path)[0].read_text()
    settings = page.split('<details class="settings">')[1].split("</details>")[0]
    differing, shared = settings.split("Settings of every run")
    assert "stage 1: 2 rounds (rate held), stage 2: 1 round (warm-up, training E 2), stage 2: 6 rounds" in differing
    assert ">stage 2: 8 rounds<" in differing
    assert "Constant(lr=0.3)" in shared
    assert "local momentum" in shared
    assert "cohort" not in differing
    told = make_report([trained]).as_json()["experiments"][0]["settings"]
    assert told["lin"]["cohort"] == "2"


def test_two_schedules_that_differ_read_differently() -> None:
    told = [
        dict(readable(describe(tiny_experiment(recipe=tiny_recipe(schedule=schedule)))))["schedule"]
        for schedule in (progressive(6, stages=3, overlap=0), as_published(6, stages=3))
    ]
    assert told == [
        "stage 1: 1 round (rate held), stage 2: 1 round (rate held), stage 3: 4 rounds",
        "stage 1: 1 round, stage 2: 1 round, stage 3: 4 rounds",
    ]


@pytest.mark.parametrize("name", ["demo", "cifar10", "strategies", "hippocampus", "compression"])
def test_every_setting_of_our_experiments_reads_as_one_short_line(name: str) -> None:
    for experiment in experiments.load(name):
        told = dict(readable(describe(experiment)))
        assert {"model", "data", "schedule", "rate", "cohort", "local batch", "metric"} <= told.keys()
        assert all(0 < len(text) < 300 and "{" not in text for text in told.values())
