"""The best model beside the last, and training that ends when none better comes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from progfed import Constant, Metric
from progfed.evaluate import evaluate
from progfed.metrics import rmse
from progfed.runs.train import run, train
from regression import ERRORS, line_experiment


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def growing_error(**changes: Any) -> Any:
    """An experiment whose error falls first and then rises, since the rate is too high by far in the end."""
    experiment = line_experiment(rounds=20, **changes)
    return replace(experiment, recipe=replace(experiment.recipe, rate=Constant(0.4)))


def test_the_best_round_of_an_error_is_the_lowest_of_the_final_model(tmp_path: Path) -> None:
    experiment = growing_error()
    summary = run(experiment, tmp_path)
    final = {line["round"]: line["metric"] for line in lines(tmp_path) if line["stage"] == 2}
    assert summary["best_metric"] == min(final.values()) == final[summary["best_round"]]
    assert summary["best_round"] < 20  # else the test below shows nothing
    model, test = experiment.make_model(), experiment.make_data(tmp_path).test_examples()
    best, last = (model.at(2, load_file(tmp_path / name)) for name in ("best.safetensors", "model.safetensors"))
    assert evaluate(best, test, ERRORS["rmse"]) == pytest.approx(summary["best_metric"])
    assert evaluate(last, test, ERRORS["rmse"]) == pytest.approx(summary["metric"])


def test_training_ends_when_patience_does_and_only_rounds_of_the_final_model_count(tmp_path: Path) -> None:
    summary = run(growing_error(patience=3), tmp_path)
    assert summary["rounds"] == summary["best_round"] + 3 < 20
    whole = lines(tmp_path)
    assert len(whole) == summary["rounds"]


@pytest.mark.parametrize("stop", range(1, 19, 4))
def test_a_run_with_patience_that_was_stopped_anywhere_ends_with_the_same_bits(stop: int, tmp_path: Path) -> None:
    experiment = growing_error(patience=3)
    summary = run(experiment, tmp_path / "whole")
    going = train(experiment, tmp_path / "stopped", data=tmp_path)
    for _, _ in zip(range(stop), going, strict=False):
        pass
    going.close()  # type: ignore[attr-defined]
    again = run(experiment, tmp_path / "stopped")
    assert again["model_sha256"] == summary["model_sha256"]
    assert (again["rounds"], again["best_round"]) == (summary["rounds"], summary["best_round"])
    both = [load_file(tmp_path / name / "best.safetensors") for name in ("whole", "stopped")]
    assert both[0].keys() == both[1].keys()
    assert all(torch.equal(value, both[1][name]) for name, value in both[0].items())


def test_a_run_that_lost_only_its_summary_trains_no_further_round(tmp_path: Path) -> None:
    experiment = growing_error(patience=3)
    summary = run(experiment, tmp_path)
    (tmp_path / "summary.json").unlink()
    assert not list(train(experiment, tmp_path, data=tmp_path))
    assert json.loads((tmp_path / "summary.json").read_text()) == summary


def test_patience_does_not_end_in_a_round_that_was_not_evaluated(tmp_path: Path) -> None:
    summary = run(growing_error(patience=3, evaluate_every=2), tmp_path)
    assert lines(tmp_path)[-1]["metric"] == summary["metric"]
    assert summary["rounds"] < 20


def test_a_single_metric_has_a_direction_too(tmp_path: Path) -> None:
    summary = run(growing_error(metrics={}, metric=Metric(rmse, higher_is_better=False)), tmp_path)
    assert summary["best_metric"] == min(line["metric"] for line in lines(tmp_path) if line["stage"] == 2)
    assert summary["metrics"] == {"rmse": summary["metric"]}
