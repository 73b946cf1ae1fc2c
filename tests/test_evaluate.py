"""Scores and losses against plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from progfed.evaluate import accuracy, dice, evaluate
from progfed.examples import Examples
from progfed.losses import dice_loss


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
