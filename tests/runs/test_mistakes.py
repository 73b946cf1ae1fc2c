"""Everyday mistakes of a new user: what can be meant only in one way works, all else is one clear sentence."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import progfed
from progfed import Examples, Experiment, FederatedData, Local, ProgfedError, Recipe, from_clients, progressive, split
from progfed.blocks import Progressive
from progfed.population import ready

_DRAW = torch.Generator().manual_seed(1)
INPUTS = [torch.randn(9, 6, generator=_DRAW) for _ in range(4)]
LABELS = [torch.randint(0, 3, (9,), generator=_DRAW) for _ in range(4)]
TEST = INPUTS[0], LABELS[0]


def network(*norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), *norm, nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def grown(*norm: nn.Module) -> Callable[[], Progressive]:
    return lambda: split(network(*norm), stages=2, example=torch.zeros(2, 6))


def pairs(
    inputs: Callable[[Tensor], Any] = lambda x: x, targets: Callable[[Tensor], Any] = lambda y: y, only: int = -1
) -> list[tuple[Any, Any]]:
    """The clients, changed: all of them, or only one."""
    changed = [only in (-1, client) for client in range(4)]
    return [
        (inputs(x) if change else x, targets(y) if change else y)
        for x, y, change in zip(INPUTS, LABELS, changed, strict=True)
    ]


def trained(out: Path, *, workers: int = 1, **changes: Any) -> Any:
    local = Local(batch=changes.pop("batch", 4), loss=changes.pop("loss", functional.cross_entropy))
    recipe = Recipe(schedule=progressive(2, stages=2), cohort=4, local=local)
    made = {"model": grown(), "data": from_clients(pairs(), TEST), **changes}
    if isinstance(made["data"], list):
        made["data"] = from_clients(made["data"], TEST)
    return progfed.run(Experiment(name="mistakes", recipe=recipe, **made), out, workers=workers)


def with_nan(inputs: Tensor) -> Tensor:
    return inputs.clone().index_fill_(0, torch.tensor([3, 5]), float("nan"))


SAME: dict[str, list[tuple[Any, Any]]] = {
    "inputs in double precision": pairs(lambda x: x.double()),
    "inputs with gradients": pairs(lambda x: x.clone().requires_grad_() * 1),
    "arrays": pairs(lambda x: x.numpy(), lambda y: y.numpy()),
    "labels of 32 bits": pairs(targets=lambda y: y.int()),
    "labels of 32 bits in an array": pairs(targets=lambda y: y.numpy().astype(np.int32)),
    "labels in a list": pairs(targets=lambda y: y.tolist()),
}


@pytest.mark.parametrize("name", SAME)
def test_what_can_be_meant_only_in_one_way_gives_the_same_model(tmp_path: Path, name: str) -> None:
    usual = trained(tmp_path / "usual")
    assert trained(tmp_path / "other", data=SAME[name])["model_sha256"] == usual["model_sha256"]


REFUSED: dict[str, tuple[int, dict[str, Any], str]] = {
    "float labels": (3, {"data": pairs(targets=lambda y: y.float())}, r"client \d has targets float32 .*targets.long"),
    "labels in a column": (3, {"data": pairs(targets=lambda y: y[:, None])}, r"client \d has targets int64 \[n, 1\]"),
    "a label too large": (3, {"data": pairs(targets=lambda y: y + 3)}, r"client \d .*Target \d is out of bounds"),
    "another shape": (
        3,
        {"data": pairs(lambda x: x[:, :5], only=1)},
        r"client 1 has inputs float32 \[n, 5\], but .*6\]",
    ),
    "whole numbers": (
        3,
        {"data": pairs(lambda x: x.long())},
        r"has inputs int64 \[n, 6\], but .* for float32 \[n, 6\]",
    ),
    "not a number": (3, {"data": pairs(with_nan, only=2)}, "client 2 has inputs .* in 2 of 9 examples, the first is 3"),
    "batches of one": (3, {"model": grown(nn.BatchNorm1d(8)), "batch": 1}, "batch normalisation cannot learn"),
    "clients of one": (
        3,
        {"model": grown(nn.BatchNorm1d(8)), "data": [(x[:1], y[:1]) for x, y in pairs()]},
        "batch normalisation cannot learn: give every client two",
    ),
    "a loss of many numbers": (2, {"loss": nn.CrossEntropyLoss(reduction="none")}, r"the loss gives .* shape \[4\]"),
    "a loss that is no tensor": (2, {"loss": lambda outputs, targets: 1.0}, "the loss gives float"),
    "no progressive model": (2, {"model": network()}, r"is Sequential, which cannot grow: give progfed.split"),
    "a function of no progressive model": (2, {"model": network}, "is Sequential, which cannot grow"),
    "data in a tuple": (3, {"data": tuple(pairs())}, r"are tuple: give progfed.from_clients"),
}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_one_sentence_whatever_the_number_of_workers(tmp_path: Path, name: str, workers: int) -> None:
    code, changes, sentence = REFUSED[name]
    with pytest.raises(ProgfedError, match=sentence) as refused:
        trained(tmp_path, workers=workers, **changes)
    assert refused.value.exit_code == code
    assert "\n" not in str(refused.value)


def scalar(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) == targets).float().mean()


BEFORE: dict[str, tuple[int, dict[str, Any], str]] = {
    "an empty test set": (3, {"data": from_clients(pairs(), (INPUTS[0][:0], LABELS[0][:0]))}, "has no examples"),
    "another shape": (3, {"data": from_clients(pairs(), (INPUTS[0][:, :5], LABELS[0]))}, "the test set has inputs"),
    "whole numbers": (
        3,
        {"data": from_clients(pairs(), (INPUTS[0].long(), LABELS[0]))},
        "the test set has inputs int64",
    ),
    "a metric of one number": (2, {"metric": scalar}, r"the metric gives \[\]: a metric returns a vector"),
}


@pytest.mark.parametrize("name", BEFORE)
def test_a_test_set_that_cannot_be_scored_is_refused_before_training(tmp_path: Path, name: str) -> None:
    code, changes, sentence = BEFORE[name]
    with pytest.raises(ProgfedError, match=sentence) as refused:
        trained(tmp_path, **changes)
    assert refused.value.exit_code == code
    assert not (tmp_path / "rounds.jsonl").exists()


def test_a_test_set_with_what_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProgfedError, match="the test set has inputs that are not finite in 2 of 9 examples"):
        trained(tmp_path, data=from_clients(pairs(), (with_nan(INPUTS[0]), LABELS[0])))


class Missing(nn.Module):
    """A layer for which NaN is a value like others."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.nan_to_num(0.5)


def test_a_model_that_takes_missing_values_is_given_them(tmp_path: Path) -> None:
    net = nn.Sequential(Missing(), *network())
    data = from_clients(pairs(with_nan), (with_nan(INPUTS[0]), LABELS[0]))
    found = trained(tmp_path, model=split(net, stages=2, example=torch.zeros(2, 6)), data=data)
    assert found["rounds"] == 2


def test_a_last_batch_of_one_is_left_out_where_batch_normalisation_cannot_take_it(tmp_path: Path) -> None:
    """9 examples in batches of 4: the ninth is alone. Clients of 9 that leave it out are trained as far as 8 are."""
    data = from_clients(pairs(), TEST)
    for workers in (1, 2):
        found = trained(tmp_path / str(workers), model=grown(nn.BatchNorm1d(8)), data=data, workers=workers)
        assert found["rounds"] == 2


def test_a_last_batch_of_one_is_trained_on_where_that_can_be(tmp_path: Path) -> None:
    """Images have several values per channel: batch normalisation takes one of them, and nothing is left out."""
    seen: list[int] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(len(targets))
        return functional.cross_entropy(outputs, targets)

    net = nn.Sequential(nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    clients = pairs(lambda x: x[:, None])
    recipe = Recipe(schedule=progressive(1, stages=1), cohort=4, local=Local(batch=4, loss=loss))
    model = split(net, stages=1, example=torch.zeros(2, 1, 6))
    data = from_clients(clients, (INPUTS[0][:, None], LABELS[0]))
    progfed.run(Experiment(name="images", model=model, data=data, recipe=recipe), tmp_path, workers=1)
    assert seen[:3] == [4, 4, 1]


GIVEN: dict[str, tuple[Callable[[], Any], str]] = {
    "no pair": (lambda: from_clients(INPUTS, TEST), "client 0 is Tensor: give Examples"),  # type: ignore[arg-type]
    "a dataset": (lambda: from_clients([TensorDataset(INPUTS[0], LABELS[0])], TEST), r"use from_datasets\(\)"),  # type: ignore[list-item]
    "augment by name": (lambda: from_clients(pairs(), TEST, augment="flip"), "augment is a function"),  # type: ignore[arg-type]
    "no test set": (lambda: from_clients(pairs(), None), "the test set is NoneType"),  # type: ignore[arg-type]
    "no clients": (lambda: from_clients([], TEST), "there are no clients"),
    "names as labels": (lambda: from_clients(pairs(targets=lambda y: ["a"] * 9), TEST), "client 0 cannot be read"),
    "too few targets": (lambda: from_clients(pairs(targets=lambda y: y[:5]), TEST), "9 inputs and 5 targets"),
    "one size": (lambda: FederatedData(sizes=9, load=lambda i: None, test=lambda: None), "sizes are a list"),  # type: ignore
}


@pytest.mark.parametrize("name", GIVEN)
def test_data_that_are_none_are_refused_when_they_are_given(name: str) -> None:
    make, sentence = GIVEN[name]
    with pytest.raises(ProgfedError, match=sentence):
        make()


def test_examples_may_be_made_as_a_pair() -> None:
    data = FederatedData(sizes=(9,), load=lambda _: (INPUTS[0], LABELS[0]), test=Examples(*TEST))  # type: ignore
    assert torch.equal(data.client(0).inputs, INPUTS[0])
    assert torch.equal(data.test_examples().targets, LABELS[0])


def test_tensors_that_are_ready_are_not_copied() -> None:
    tree = {"tokens": torch.arange(6).view(2, 3), "mask": (torch.ones(2, 3), torch.ones(2, dtype=torch.uint8))}
    found = ready(Examples(tree, torch.tensor([0, 1], dtype=torch.uint8)), "these")
    assert found.inputs["tokens"].data_ptr() == tree["tokens"].data_ptr()  # type: ignore[attr-defined]
    assert found.inputs["mask"][1].dtype is found.targets.dtype is torch.uint8


DIVERGING = """
import torch
from torch import nn
import progfed

draw = torch.Generator().manual_seed(0)
clients = [(torch.randn(8, 6, generator=draw), torch.randint(0, 3, (8,), generator=draw)) for _ in range(3)]
clients[1] = clients[1][0] * 1e37, clients[1][1]
net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
EXPERIMENT = progfed.Experiment(
    name="diverging",
    model=lambda: progfed.split(net, stages=1, example=torch.zeros(1, 6)),
    data=progfed.from_clients(clients, test=clients[0]),
    recipe=progfed.Recipe(schedule=progfed.end_to_end(1, stages=1), cohort=3, local=progfed.Local(batch=2)),
)
"""


def test_the_terminal_says_how_many_updates_were_rejected_and_why(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DIVERGING)
    command = [sys.executable, "-m", "progfed", "run", str(tmp_path / "mine.py"), "--out", str(tmp_path / "out")]
    done = subprocess.run([*command, "--workers", "1"], capture_output=True, text=True, check=True)
    assert "rejected: 1 loss" in done.stderr
