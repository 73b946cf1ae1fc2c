"""Scores and losses against plain NumPy."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from progfed.engines.local import LocalEngine
from progfed.evaluate import BATCH, Examiner, accuracy, batch_size, dice, evaluate
from progfed.experiments import NAMES, load
from progfed.losses import dice_loss
from progfed.models.unet import unet
from progfed.population import Examples
from progfed.recipe.recipe import Local
from progfed.runs.experiment import Experiment
from progfed.schedule import Phase
from tiny import tiny_data, tiny_model, tiny_recipe


def numpy_dice(predicted: np.ndarray, truth: np.ndarray) -> float:
    total = predicted.sum() + truth.sum()
    return 1.0 if total == 0 else 2 * (predicted & truth).sum() / total


@given(seed=st.integers(0, 10_000), classes=st.integers(2, 5), dims=st.integers(1, 3))
def test_dice_of_labels_equals_numpy(seed: int, classes: int, dims: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    shape = (3, *[4] * dims)
    outputs = torch.randn(3, classes, *[4] * dims, generator=draw)
    targets = torch.randint(0, classes, shape, generator=draw)
    predicted, truth = outputs.argmax(1).numpy(), targets.numpy()
    expected = [
        np.mean([numpy_dice(predicted[i] == c, truth[i] == c) for c in range(1, classes)]) for i in range(len(truth))
    ]
    assert np.allclose(dice(outputs, targets).numpy(), expected)


@given(seed=st.integers(0, 10_000))
def test_dice_of_overlapping_regions_equals_numpy(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    outputs = torch.randn(2, 3, 4, 4, 4, generator=draw)
    targets = (torch.rand(2, 3, 4, 4, 4, generator=draw) > 0.8).float()
    predicted, truth = outputs.numpy() > 0, targets.numpy() > 0.5
    expected = [np.mean([numpy_dice(predicted[i, r], truth[i, r]) for r in range(3)]) for i in range(2)]
    assert np.allclose(dice(outputs, targets).numpy(), expected)


def test_dice_of_what_is_absent_in_both_is_one() -> None:
    outputs = torch.tensor([5.0, 0.0]).view(1, 2, 1).expand(1, 2, 7)
    assert dice(outputs, torch.zeros(1, 7, dtype=torch.long)).item() == 1.0


@pytest.mark.parametrize("number", [1, 249, 250, 251, 600])
def test_accuracy_equals_numpy_whatever_the_batches(number: int) -> None:
    draw = torch.Generator().manual_seed(number)
    inputs, targets = torch.randn(number, 4, generator=draw), torch.randint(0, 3, (number,), generator=draw)
    module = nn.Linear(4, 3)
    expected = 100 * np.mean(module(inputs).argmax(1).numpy() == targets.numpy())
    assert evaluate(module, Examples(inputs, targets)) == pytest.approx(expected)


def test_accuracy_of_sequences_averages_positions() -> None:
    outputs = torch.tensor([[[2.0, 0.0], [0.0, 2.0]]]).transpose(1, 2)  # one example, two classes, two positions
    assert accuracy(outputs, torch.tensor([[0, 0]])).tolist() == [0.5]


def test_the_dice_loss_falls_as_the_overlap_grows_and_has_gradients_everywhere() -> None:
    targets = torch.zeros(1, 4, 4, dtype=torch.long)
    targets[:, :2] = 1
    losses = []
    for strength in (-2.0, 0.0, 2.0, 6.0):
        sign = torch.where(targets == 1, 1.0, -1.0)
        outputs = torch.stack((-sign * strength, sign * strength), 1).requires_grad_()
        loss = dice_loss(outputs, targets)
        loss.backward()
        assert outputs.grad is not None
        assert (outputs.grad.abs().sum((2, 3)) > 0).all()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.01


def test_the_dice_loss_of_regions_equals_numpy() -> None:
    draw = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(2, 3, 5, 5, generator=draw), (torch.rand(2, 3, 5, 5, generator=draw) > 0.7).float()
    p, t = 1 / (1 + np.exp(-outputs.double().numpy())), targets.double().numpy()
    entropy = -(t * np.log(p) + (1 - t) * np.log(1 - p)).mean()
    score = ((2 * (p * t).sum((2, 3)) + 1) / (p.sum((2, 3)) + t.sum((2, 3)) + 1)).mean()
    assert dice_loss(outputs, targets).item() == pytest.approx(entropy + 1 - score, rel=1e-5)


def shaped(number: int, *shape: int) -> Examples:
    """Examples of this shape that take no memory, with a label each."""
    return Examples(torch.zeros(1).expand(number, *shape), torch.zeros(number, dtype=torch.long))


def small() -> list[Experiment]:
    """Every experiment on images or text, and that on the hippocampus: all that was evaluated 250 at once before."""
    found = [run for name in NAMES for run in load(name) if not run.run.startswith("brats")]
    return list({(run.name, str(run.model)): run for run in found}.values())


@pytest.mark.parametrize("run", small(), ids=lambda run: f"{run.name}-{run.run}")
def test_small_examples_are_evaluated_250_at_once_as_ever(run: Experiment) -> None:
    model = run.make_model()
    test = Examples(model.example.expand(2, *model.example.shape[1:]), torch.zeros(2))
    at_once = batch_size(model.at(model.stages), test)
    assert at_once == BATCH or (
        "hippocampus" in (run.name, run.run.split("-")[0]) and at_once >= 60
    )  # it has 60 volumes to test


def test_volumes_of_128_cubed_are_evaluated_one_at_a_time() -> None:
    model = unet(growth="symmetric")
    assert batch_size(model.at(4), shaped(57, 4, 128, 128, 128)) == 1


class Looking(nn.Module):
    """A forward that cannot be followed by shapes alone."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.flatten(1)[:, :2].repeat(1, 1 if inputs.sum().item() else 1000)


def test_a_forward_that_looks_at_values_is_measured_by_running_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("progfed.evaluate.ROOM", 5 * 8200)
    assert batch_size(Looking(), shaped(10, 4)) == 5


def test_the_score_is_the_same_to_the_bit_for_any_number_of_workers_and_any_batch_size_of_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("progfed.evaluate.ROOM", 2000)
    model, data, phase = tiny_model(), tiny_data(), Phase(3, 1)
    test = data.test_examples()
    params = {name: value for part in model.parts(phase) for name, value in model.init(part, seed=0).items()}

    def share(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs.softmax(1)[:, 0].double()  # every bit of an output counts

    ranges = Examiner(model, test, share).shares(phase, 3)
    assert len({step.step for step in ranges}) == 1
    assert 1 < ranges[0].step < 40
    found = {evaluate(model.at(3, params), test, share)}
    for workers, batch in ((1, 10), (2, 1), (3, 7)):
        recipe = tiny_recipe(local=Local(batch=batch))
        with LocalEngine(model, data, recipe, workers=workers, test=test, metric=share) as engine:
            found.add(engine.evaluate(phase, params))
    assert len(found) == 1


MEASURED = """
import re, sys
from pathlib import Path
import torch
from progfed import evaluate
from progfed.population import Examples
from progfed.recipe.recipe import Local
from progfed.models.unet import unet


def peak():  # of this program alone: what `resource` tells includes that of the process it was forked from
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])


torch.set_num_threads(1)
evaluate.ROOM = 64 * 2**20
module = unet(widths=(8, 16), size=(32, 32, 32), growth="symmetric", stages=2).at(2)
test = Examples(torch.ones(120, 4, 32, 32, 32), torch.ones(120, 3, 32, 32, 32))
evaluate.evaluate(module, test.take(slice(0, 2)), evaluate.dice)
before = peak()
if int(sys.argv[1]):
    evaluate.batch_size = lambda module, examples: int(sys.argv[1])
evaluate.evaluate(module, test, evaluate.dice)
print(peak() - before)
"""


def test_evaluation_stays_within_its_room_whatever_the_size_of_the_test_set() -> None:
    def grown(batch: int) -> int:
        done = subprocess.run([sys.executable, "-c", MEASURED, str(batch)], capture_output=True, text=True, check=True)
        return int(done.stdout) * 1024

    assert grown(0) < 3 * 64 * 2**20
    assert grown(120) > 6 * 64 * 2**20  # all at once, as it was
