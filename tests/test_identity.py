"""Identities: the same for ever for what is the same, and another for what is another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from progfed import experiments
from progfed.evaluate import accuracy
from progfed.identity import PINNED, describe, identity

KNOWN: dict[str, str] = json.loads((Path(__file__).parent / "identities.json").read_text())


def texts(value: Any) -> list[str]:
    """All texts in a description."""
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("name", experiments.NAMES)
def test_every_run_of_every_experiment_is_still_the_experiment_that_it_was(name: str) -> None:
    """A run that is changed on purpose gets a new line in identities.json; its old folders are refused from then on."""
    found = {f"{name}/{experiment.run}": identity(experiment) for experiment in experiments.load(name)}
    assert found == {run: digits for run, digits in KNOWN.items() if run.startswith(f"{name}/")}


@pytest.mark.parametrize("name", experiments.NAMES)
def test_every_function_of_progfed_in_an_experiment_has_a_name_that_stays(name: str) -> None:
    pinned = {f"{module}:{function}" for function, module in PINNED.items()}
    for experiment in experiments.load(name):
        assert {text for text in texts(describe(experiment)) if text.startswith("progfed.")} <= pinned


def test_a_function_that_moves_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    before = describe(accuracy)
    monkeypatch.setattr(accuracy, "__module__", "progfed.scores.classes")
    assert describe(accuracy) == before == "progfed.evaluate:accuracy"


def test_only_progfeds_own_functions_have_pinned_names() -> None:
    def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs

    accuracy.__qualname__ = "accuracy"
    assert describe(accuracy) == f"{__name__}:accuracy"
