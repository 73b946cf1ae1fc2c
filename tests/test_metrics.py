"""Metrics against brute force, and through a whole run: several by name, of all predictions, for any workers."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from progfed import Metric
from progfed.engines.local import LocalEngine
from progfed.errors import UsageError
from progfed.evaluate import evaluate
from progfed.metrics import accuracy, auc, f1, mae, named, perplexity, rmse
from progfed.population import Examples
from progfed.runs.identity import identity
from progfed.runs.train import run
from progfed.schedule import Phase
from tiny import tiny_data, tiny_experiment, tiny_model, tiny_recipe


def by_pairs(scores: list[float], truth: list[bool]) -> float:
    """The share of pairs of an example with the label and one without whose scores are in order."""
    both = [[score for score, label in zip(scores, truth, strict=True) if label == there] for there in (True, False)]
    pairs = list(product(*both))
    return sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30))
def test_auc_is_the_share_of_pairs_in_order_and_ties_count_half(drawn: list[tuple[int, bool]]) -> None:
    scores, truth = [float(score) for score, _ in drawn], [label for _, label in drawn]
    outputs, targets = torch.tensor(scores), torch.tensor(truth).float()
    if len(set(truth)) == 1:
        with pytest.raises(UsageError, match="AUC needs examples with and without a label"):
            auc(outputs, targets)
    else:
        assert float(auc(outputs, targets)) == pytest.approx(by_pairs(scores, truth))


def test_auc_of_several_labels_is_their_mean_and_of_classes_one_against_the_rest() -> None:
    draw = torch.Generator().manual_seed(0)
    outputs, labels = torch.randn(40, 3, generator=draw), torch.randint(0, 2, (40, 3), generator=draw)
    single = [by_pairs(outputs[:, i].tolist(), (labels[:, i] > 0).tolist()) for i in range(3)]
    assert float(auc(outputs, labels)) == pytest.approx(sum(single) / 3)
    assert float(auc(outputs, labels.float())) == pytest.approx(sum(single) / 3)
    classes, shares = torch.randint(0, 3, (40,), generator=draw), outputs.softmax(1)
    single = [by_pairs(shares[:, i].tolist(), (classes == i).tolist()) for i in range(3)]
    assert float(auc(outputs, classes)) == pytest.approx(sum(single) / 3)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30))
def test_f1_is_that_of_counted_hits(drawn: list[tuple[int, int]]) -> None:
    outputs = torch.nn.functional.one_hot(torch.tensor([guess for guess, _ in drawn]), 3).float()
    found = []
    for label in range(3):
        hits = sum(guess == truth == label for guess, truth in drawn)
        said, there = sum(guess == label for guess, _ in drawn), sum(truth == label for _, truth in drawn)
        found += [2 * hits / (said + there)] if said + there else []
    assert float(f1(outputs, torch.tensor([truth for _, truth in drawn]))) == pytest.approx(sum(found) / len(found))


def test_errors_are_of_all_predictions_and_never_spread_over_each_other() -> None:
    outputs, targets = torch.tensor([[1.0], [2.0], [6.0]]), torch.tensor([1.0, 4.0, 2.0])
    assert float(rmse(outputs, targets)) == pytest.approx(math.sqrt(20 / 3))
    assert float(mae(outputs, targets)) == pytest.approx(2)
    with pytest.raises(UsageError, match=r"outputs \[3, 2\] and targets \[3\]"):
        rmse(torch.zeros(3, 2), targets)


def test_perplexity_of_equal_guesses_is_the_size_of_the_vocabulary() -> None:
    tokens = Examples(torch.zeros(6, 5, 7), torch.full((6, 5), 3))
    assert evaluate(nn.Identity(), tokens, perplexity()) == pytest.approx(7)  # type: ignore[arg-type]


class Counter:
    """Counts as torchmetrics does, and keeps what it counted."""

    def __init__(self) -> None:
        self.hits = self.number = 0

    def reset(self) -> None:
        self.hits = self.number = 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.hits += int((outputs.argmax(1) == targets).sum())
        self.number += len(targets)

    def compute(self) -> Tensor:
        return torch.tensor(self.hits / self.number)


def shares_of_first(outputs: Tensor, targets: Tensor) -> float:
    return float(outputs.softmax(1)[:, 0].mean())


METRICS = {
    "accuracy": accuracy,
    "F1": Metric(f1, unit="%"),
    "first": Metric(shares_of_first, higher_is_better=False),
    "counted": Metric(Counter(), unit="%"),
}


def test_all_metrics_are_in_records_and_summary_and_the_first_is_the_metric(tmp_path: Path) -> None:
    summary = run(tiny_experiment(metrics=METRICS), tmp_path)
    last = json.loads((tmp_path / "rounds.jsonl").read_text().splitlines()[-1])
    assert list(summary["metrics"]) == list(last["metrics"]) == list(METRICS)
    assert summary["metrics"] == last["metrics"]
    assert summary["metric"] == summary["metrics"]["accuracy"] == pytest.approx(summary["metrics"]["counted"])
    assert run(tiny_experiment(metrics=METRICS), tmp_path) == summary  # the objects that count are as they were


def test_metrics_are_the_same_for_any_number_of_workers() -> None:
    model, recipe, data = tiny_model(), tiny_recipe(), tiny_data()
    test, phase = Examples(torch.randn(700, 6), torch.arange(700) % 3), Phase(3, 1)
    params = {name: value for part in model.parts(phase) for name, value in model.init(part, seed=1).items()}
    found = []
    for workers in (1, 2, 5):
        with LocalEngine(model, data, recipe, workers=workers, test=test, metric=named(METRICS)) as engine:
            found.append(engine.measure(phase, params))
    assert found[0] == found[1] == found[2]
    assert engine._examiners[0].measure(phase, params) == found[0]


def test_one_metric_leaves_records_and_identity_as_they_were(tmp_path: Path) -> None:
    summary = run(tiny_experiment(), tmp_path)
    assert "metrics" not in json.loads((tmp_path / "rounds.jsonl").read_text().splitlines()[0])
    assert summary["metrics"] == {"accuracy": summary["metric"]}
    assert "metrics" not in json.loads((tmp_path / "experiment.json").read_text())


def test_the_first_metric_is_part_of_what_an_experiment_is() -> None:
    other = dict(reversed(METRICS.items()))
    assert identity(tiny_experiment(metrics=METRICS)) != identity(tiny_experiment(metrics=other))


def never(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.tensor(float("nan"))


def square(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs


@pytest.mark.parametrize(
    ("metric", "wanted"),
    [
        (Metric(never), "the metric mine is nan on the test set"),
        (Metric(square), r"the metric gives \[40, 3\]: a metric returns a number or a vector"),
        (Metric(square, of="each"), r"the metric gives \[1, 3\]: a metric returns a vector"),
        (Metric(lambda outputs, targets: "high"), "the metric gives str"),
        (Metric(lambda outputs, targets: outputs[:, 9]), "the loss or metric cannot compare"),
    ],
)
def test_a_metric_that_gives_no_number_is_refused_in_a_sentence(metric: Metric, wanted: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=wanted) as error:
        run(tiny_experiment(metrics={"mine": metric}), tmp_path)
    assert type(error.value).__module__ == "progfed.errors"


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: Metric(3), "a metric is a function of outputs and targets"),
        (lambda: Metric(f1, of="some"), "of 'all' predictions or of 'each'"),  # type: ignore[arg-type]
        (lambda: Metric(Counter(), of="each"), "leave out of='each'"),
        (lambda: tiny_experiment(metrics={"": f1}), "metrics are given by name"),
        (lambda: tiny_experiment(patience=0), "patience is a number of rounds"),
    ],
)
def test_metrics_that_make_no_sense_are_refused_when_they_are_made(make: Any, wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted):
        make()
