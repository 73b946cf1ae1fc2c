"""Identities: the same for ever for what is the same, and another for what is another."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from progfed import experiments
from progfed.data.augment import compose, random_crop, random_flip
from progfed.errors import StorageError, UsageError
from progfed.evaluate import accuracy
from progfed.recipe.recipe import Local, Loss
from progfed.runs.identity import PINNED, describe, identity
from progfed.runs.train import run, train
from tiny import tiny_data, tiny_experiment, tiny_recipe

KNOWN: dict[str, str] = json.loads((Path(__file__).parents[1] / "identities.json").read_text())


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
        told = {text for text in texts(describe(experiment)) if text.startswith("progfed.")}
        assert {text.partition(" ")[0] for text in told} <= pinned


def test_a_function_that_moves_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    before = describe(accuracy)
    monkeypatch.setattr(accuracy, "__module__", "progfed.scores.classes")
    assert describe(accuracy) == before == "progfed.evaluate:accuracy"


def test_only_progfeds_own_functions_have_pinned_names() -> None:
    def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs

    accuracy.__qualname__ = "accuracy"
    assert describe(accuracy) == f"{__name__}:accuracy"


# --- losses, metrics and other functions ----------------------------------------------------------------------------


class Focal:
    """A loss with settings, as people write it."""

    def __init__(self, gamma: float, weights: torch.Tensor | None = None) -> None:
        self._gamma, self.weights = gamma, weights

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs, targets, self.weights) ** self._gamma

    def twice(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return 2 * self(outputs, targets)


class Wrapped(nn.Module):
    """A loss that is a module with another inside."""

    def __init__(self, inner: nn.Module, scale: float) -> None:
        super().__init__()
        self.inner, self.scale = inner, scale


def scaled(factor: float) -> Loss:
    """A loss made by a function, with a setting that it closes over."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return factor * functional.cross_entropy(outputs, targets)

    return loss


ones, halves = torch.ones(3), torch.full((3,), 0.5)
DIFFERENT: dict[str, tuple[Any, Any]] = {
    "label smoothing": (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1)),
    "class weights": (nn.CrossEntropyLoss(weight=ones), nn.CrossEntropyLoss(weight=halves)),
    "positive weight": (nn.BCEWithLogitsLoss(pos_weight=ones), nn.BCEWithLogitsLoss(pos_weight=halves)),
    "the loss inside a loss": (Wrapped(nn.NLLLoss(), 1.0), Wrapped(nn.CrossEntropyLoss(), 1.0)),
    "a module's own setting": (Wrapped(nn.NLLLoss(), 1.0), Wrapped(nn.NLLLoss(), 2.0)),
    "an object's setting": (Focal(1.0), Focal(2.0)),
    "an object's tensor": (Focal(1.0, ones), Focal(1.0, halves)),
    "a method's object": (Focal(1.0).twice, Focal(2.0).twice),
    "what a function closes over": (scaled(1.0), scaled(2.0)),
    "a lambda's constants": (lambda o, t: (o - t).sum() * 2, lambda o, t: (o - t).sum() * 3),
    "a lambda's calls": (lambda o, t: o.sum(), lambda o, t: o.mean()),
    "a lambda's defaults": (lambda o, t, k=1: o.sum() * k, lambda o, t, k=2: o.sum() * k),
    "a lambda in a lambda": (lambda o, t: lambda: 1, lambda o, t: lambda: 2),
    "arrays": (partial(accuracy, w=np.ones(2)), partial(accuracy, w=np.zeros(2))),
    "dicts": (partial(accuracy, w={"a": 1, 2: ones}), partial(accuracy, w={"a": 1, 2: halves})),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_another_setting_of_a_loss_or_metric_is_another_experiment(what: str) -> None:
    one, other = (tiny_experiment(recipe=tiny_recipe(local=Local(loss=loss))) for loss in DIFFERENT[what])
    assert identity(one) != identity(other)
    one, other = (tiny_experiment(metric=metric) for metric in DIFFERENT[what])
    assert identity(one) != identity(other)
    assert json.loads(json.dumps(describe(one))) == describe(one)


SAME: dict[str, Callable[[], Any]] = {
    "a module": lambda: Wrapped(nn.CrossEntropyLoss(weight=torch.ones(3)), 1.0),
    "an object": lambda: Focal(1.0, torch.ones(3)),
    "a method": lambda: Focal(1.0).twice,
    "a closure": lambda: scaled(2.0),
    "a lambda": lambda: lambda o, t: [word for word in ("a", "b") if word in {"a", "b", "c"}],
    "a set": lambda: partial(accuracy, w={"a", "b", "c", "d"}),
    "an augmentation": lambda: compose(random_crop(24, padding=4), random_flip()),
}


@pytest.mark.parametrize("what", SAME)
def test_the_same_settings_are_the_same_experiment_and_no_address_is_told(what: str) -> None:
    assert describe(SAME[what]()) == describe(SAME[what]())
    assert " at 0x" not in json.dumps(describe(SAME[what]()))


def test_an_augmentation_is_part_of_data_given_as_a_value() -> None:
    plain = tiny_experiment()
    small, large = (replace(tiny_data(), augment=random_crop(size)) for size in (24, 28))
    assert len({identity(replace(plain, data=data)) for data in (tiny_data(), small, large)}) == 3


def test_what_a_function_is_does_not_change_while_it_is_used() -> None:
    loss: Any = lambda o, t: [word * 2 for word in (o, t)]  # noqa: E731
    before = describe(loss)
    for _ in range(100):
        loss(1, 2)  # Python rewrites the code of what is called often
    assert describe(loss) == before


FILE = """
{above}
import torch, progfed
from torch import nn
class Metric:
    def __init__(self, k): self.k = k
    def __call__(self, outputs, targets): return outputs.sum(1) * 0
some = torch.ones(8, 6), torch.zeros(8, dtype=torch.int64)
data = lambda folder: progfed.from_clients([some] * 4, test=some)
def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    return progfed.split(net, stages=1, example=torch.zeros(1, 6))
recipe = progfed.Recipe(schedule=progfed.end_to_end(2, stages=1), cohort=2,
    local=progfed.Local(loss=nn.CrossEntropyLoss(label_smoothing={smoothing})))
EXPERIMENT = progfed.Experiment(name="own", model=model, data=data, recipe=recipe, metric=Metric(2))
"""


def test_a_run_with_objects_from_a_file_continues_and_is_refused_when_the_file_is_edited(tmp_path: Path) -> None:
    file, out = tmp_path / "own.py", tmp_path / "out"
    file.write_text(FILE.format(above="", smoothing=0.0))
    (experiment,) = experiments.load(str(file))
    next(train(experiment, out, data=tmp_path))
    file.write_text(FILE.format(above="# a comment above moves all lines", smoothing=0.0))
    (again,) = experiments.load(str(file))
    assert run(again, out)["rounds"] == 2
    file.write_text(FILE.format(above="", smoothing=0.1))
    (edited,) = experiments.load(str(file))
    with pytest.raises(StorageError, match=r"recipe.local.loss.label_smoothing 0.0 there, 0.1 now"):
        run(edited, out)


def test_what_cannot_be_told_from_another_is_refused_with_a_sentence() -> None:
    class Locked:
        def __init__(self) -> None:
            self.lock = threading.Lock()

    class Endless:
        def __init__(self) -> None:
            self.me = self

    for metric in (Locked(), Endless()):
        with pytest.raises(UsageError, match=r"cannot be told from another.*__getstate__"):
            identity(tiny_experiment(metric=metric))


def test_an_object_says_itself_what_it_is() -> None:
    class Cached:
        def __init__(self, alpha: float) -> None:
            self.alpha, self.cache = alpha, threading.Lock()

        def __getstate__(self) -> dict[str, float]:
            return {"alpha": self.alpha}

    assert describe(Cached(1.0)) == describe(Cached(1.0)) != describe(Cached(2.0))
