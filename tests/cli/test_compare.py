"""`progfed run --compare`, `--seeds` and `--validate`, as a user types them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from progfed import experiments
from progfed.cli import main
from progfed.runs.compare import compared
from progfed.runs.directory import RunDirectory
from progfed.runs.train import train

OWN = """
import torch
from torch import nn
import progfed

torch.manual_seed(0)
draw = lambda n: (torch.randn(n, 6), torch.randint(0, 3, (n,)))
net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
model = progfed.split(net, stages=2, example=torch.zeros(1, 6))
data = progfed.from_clients([draw(20) for _ in range(4)], test=draw(20), classes=3)
recipe = progfed.Recipe(schedule=progfed.progressive(4, stages=2), cohort=2)
EXPERIMENT = progfed.Experiment(name="own", model=model, data=data, recipe=recipe)
"""

PAIR = """
from dataclasses import replace
whole = replace(recipe, schedule=progfed.end_to_end(5, stages=2))
other = replace(recipe, schedule=progfed.progressive(4, stages=2, warmup=1))
RUNS = (
    replace(EXPERIMENT, run="whole", recipe=whole),
    replace(EXPERIMENT, run="alone"),
    replace(EXPERIMENT, run="first", baseline="whole"),
    replace(EXPERIMENT, run="second", baseline="whole", recipe=other),
)
"""

POLICY = """
from dataclasses import replace
EXPERIMENT = replace(EXPERIMENT, recipe=replace(recipe, growth="plateau"))
"""


ERRORS = """
from dataclasses import replace
error = progfed.Metric(lambda outputs, targets: (outputs.argmax(1) != targets).float(), higher_is_better=False)
EXPERIMENT = replace(EXPERIMENT, metrics={"error": error})
"""


class Commands:
    """Commands in a folder of their own that has a user's file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str) -> tuple[int, str, list[str]]:
        """Exit code, standard output, and the lines on standard error."""
        self._monkeypatch.setattr(sys, "argv", ["progfed", *arguments])
        code: object = 0
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code
        told = self._capsys.readouterr()
        return (code if isinstance(code, int) else 0), told.out, told.err.splitlines()

    def compared(self, *arguments: str) -> Any:
        """What `--compare --json` prints."""
        code, out, err = self("run", *arguments, "--compare", "--json", "--workers", "1")
        assert code == 0, err
        return json.loads(out)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    Path("pair.py").write_text(OWN + PAIR)
    Path("policy.py").write_text(OWN + POLICY)
    Path("errors.py").write_text(OWN + ERRORS)
    return Commands(monkeypatch, capsys)


def test_a_users_own_file_is_compared_in_one_command(command: Commands) -> None:
    code, out, log = command("run", "own.py", "--compare", "--workers", "1")
    assert code == 0
    folders = sorted(path.name for path in Path("runs/own").iterdir())
    assert folders == ["report", "run-end-to-end-seed0", "run-equal-bytes-seed0", "run-seed0"]
    assert out.splitlines()[-2] == "report: runs/own/report/report.html"
    assert Path("runs/own/report/report.html").exists()
    assert out.splitlines()[-1].startswith("At equal bytes ")
    assert "bytes vs" in " ".join(out.split())  # the growing run names no baseline, and is compared all the same
    assert len(log) == 4 + 4 + 4  # the bytes of growing are a little more than 3 rounds of the full model


def test_the_same_command_continues_and_uses_what_was_trained_before(command: Commands) -> None:
    assert command("run", "own.py", "--workers", "1")[0] == 0
    before = RunDirectory(Path("runs/own/run-seed0")).read("summary.json")
    first = command.compared("own.py")
    assert before in first["runs"]
    *_, equal = compared(experiments.load("own.py")[0])
    next(train(equal, Path("again/run-equal-bytes-seed0"), data=Path()))  # stopped after a round
    again = command.compared("own.py", "--out", "again")
    assert [run["model_sha256"] for run in again["runs"]] == [run["model_sha256"] for run in first["runs"]]
    code, out, log = command("run", "own.py", "--compare", "--json", "--workers", "1")
    assert (code, json.loads(out), log) == (0, first, [])


def test_json_has_the_runs_and_the_comparison(command: Commands) -> None:
    shown = command.compared("own.py")
    found = shown["comparison"]
    assert [run["run"] for run in shown["runs"]] == ["run-end-to-end", "run", "run-equal-bytes"]
    assert found["growing"]["bytes"] <= found["equal_bytes"]["bytes"] <= found["end_to_end"]["bytes"]
    assert found["against_end_to_end"]["bytes"] == found["growing"]["bytes"] / found["end_to_end"]["bytes"]
    gain = found["growing"]["metric"]["mean"] - found["equal_bytes"]["metric"]["mean"]
    assert found["at_equal_bytes"] == {
        "gain": gain,
        "deviation": None,
        "bytes": found["growing"]["bytes"] / found["equal_bytes"]["bytes"],
        "within_spread": False,
    }
    assert Path(shown["report"]).exists()


def test_several_seeds_give_means_and_deviations(command: Commands) -> None:
    shown = command.compared("own.py", "--seeds", "0,1,2")
    assert [run["seed"] for run in shown["runs"]] == [0, 1, 2] * 3
    for name in ("end_to_end", "growing", "equal_bytes"):
        assert shown["comparison"][name]["seeds"] == [0, 1, 2]
        assert shown["comparison"][name]["metric"]["std"] is not None
    assert "±" in shown["comparison"]["sentence"]
    assert len(list(Path("runs/own").glob("*-seed2"))) == 3


def test_a_run_with_a_baseline_is_compared_with_it(command: Commands) -> None:
    by_default = command.compared("pair.py")
    assert [run["run"] for run in by_default["runs"]] == ["whole", "first", "first-equal-bytes"]
    assert by_default["comparison"]["end_to_end"]["rounds"] == 5
    named = command.compared("pair.py", "--run", "second")
    assert [run["run"] for run in named["runs"]] == ["whole", "second", "second-equal-bytes"]
    alone = command.compared("pair.py", "--run", "alone")
    assert [run["run"] for run in alone["runs"]] == ["alone-end-to-end", "alone", "alone-equal-bytes"]


def test_settings_and_rounds_hold_for_all_that_is_compared(command: Commands) -> None:
    shown = command.compared("own.py", "--rounds", "8", "--set", "cohort=3", "--out", "elsewhere")
    assert [run["rounds"] for run in shown["runs"][:2]] == [8, 8]
    described = [json.loads(path.read_text()) for path in Path("elsewhere").glob("*/experiment.json")]
    assert [one["recipe"]["cohort"] for one in described] == [3, 3, 3]


def test_bytes_that_are_known_afterwards_are_measured(command: Commands) -> None:
    shown = command.compared("policy.py", "--rounds", "12")["comparison"]
    assert shown["equal_bytes"]["bytes"] >= shown["growing"]["bytes"]


def test_of_errors_the_fewer_are_the_better(command: Commands) -> None:
    shown = command.compared("errors.py")["comparison"]
    gain = shown["end_to_end"]["metric"]["mean"] - shown["growing"]["metric"]["mean"]
    assert shown["against_end_to_end"]["gain"] == gain
    assert "points" not in shown["sentence"]


def test_validation_is_an_experiment_of_its_own_with_folders_of_its_own(command: Commands) -> None:
    shown = command.compared("own.py", "--validate")
    assert {run["experiment"] for run in shown["runs"]} == {"own-validation"}
    assert not Path("runs/own").exists()
    assert command("run", "own.py", "--workers", "1", "--out", "runs/own-validation")[0] == 5  # not mixed up


def test_several_seeds_are_trained_without_a_comparison_too(command: Commands) -> None:
    code, out, _ = command("run", "own.py", "--seeds", "4,5", "--workers", "1", "--json")
    assert code == 0
    assert [summary["seed"] for summary in json.loads(out)] == [4, 5]
    assert sorted(path.name for path in Path("runs/own").iterdir()) == ["run-seed4", "run-seed5"]


MISTAKES = [
    (["pair.py", "--compare", "--run", "whole"], "is a baseline itself: compare a run whose schedule grows"),
    (["pair.py", "--compare", "--run", "first", "--run", "second"], "--compare takes one --run"),
    (["pair.py", "--compare", "--run", "nosuch"], "has no run 'nosuch'"),
    (["own.py", "--compare", "--rounds", "2", "--set", "cohort=9"], "a cohort of 9 clients cannot be drawn from 4"),
    (["own.py", "--seeds", "0,x"], "--seeds takes whole numbers with commas between them, 0,1,2, not '0,x'"),
    (["own.py", "--seeds", "1,2", "--seed", "1"], "--seed and --seeds are two ways to say the same"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=[" ".join(case[0]) for case in MISTAKES])
def test_a_mistake_is_one_sentence(command: Commands, arguments: list[str], message: str) -> None:
    code, out, (line,) = command("run", *arguments, "--workers", "1")
    assert (code, out) == (2, "")
    assert message in line
    assert not Path("runs").exists()
