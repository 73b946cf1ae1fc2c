"""Synthetic populations: lazy at a million clients, keyed, and possible to learn from."""

import tracemalloc

import pytest
import torch
from torch.nn import functional as F

from progfed.data.synthetic import Sizes, classification, segmentation
from progfed.errors import UsageError


def test_a_million_clients_cost_memory_only_for_those_in_use() -> None:
    tracemalloc.start()
    data = classification(1_000_000, shape=(4,), per_client=(1, 9))
    chosen = [data.client(index).number for index in (0, 499_999, 999_999)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert data.clients == 1_000_000
    assert chosen == [data.sizes[index] for index in (0, 499_999, 999_999)]
    assert peak < 1_000_000  # a byte a client would already be too much


def test_sizes_are_a_sequence_like_any_other() -> None:
    sizes = Sizes(1000, 3, 7, seed=1)
    assert list(sizes) == [sizes[index] for index in range(1000)]
    assert set(sizes) == {3, 4, 5, 6, 7}
    assert sizes[-1] == sizes[999]
    assert sizes[2:5] == [sizes[2], sizes[3], sizes[4]]
    with pytest.raises(IndexError):
        sizes[1000]


def test_a_client_depends_on_its_key_alone() -> None:
    small, large = classification(3, seed=5), classification(3000, seed=5)
    assert torch.equal(small.client(2).inputs, large.client(2).inputs)
    assert not torch.equal(small.client(1).inputs, small.client(2).inputs)
    assert not torch.equal(small.client(2).inputs, classification(3, seed=6).client(2).inputs)


def test_a_small_alpha_makes_clients_of_few_labels() -> None:
    skewed, even = (classification(30, per_client=50, alpha=alpha) for alpha in (0.05, None))
    kinds = [sum(len(data.client(i).targets.unique()) for i in range(30)) / 30 for data in (skewed, even)]
    assert kinds[0] < 4 < 9 < kinds[1]


def test_a_linear_model_learns_the_synthetic_classes() -> None:
    data = classification(20, shape=(16,), classes=4, noise=0.5)
    weights = torch.zeros(16, 4, requires_grad=True)
    for client in range(20):
        examples = data.client(client)
        (gradient,) = torch.autograd.grad(F.cross_entropy(examples.inputs @ weights, examples.targets), weights)
        weights = (weights - 0.5 * gradient).detach().requires_grad_()
    test = data.test_examples()
    assert float(((test.inputs @ weights).argmax(1) == test.targets).double().mean()) > 0.9


def test_segmentation_regions_are_nested_and_in_every_volume() -> None:
    data = segmentation(2, size=(12, 12, 12))
    examples = data.client(1)
    whole, core, enhancing = examples.targets.unbind(1)
    assert bool((whole >= core).all())
    assert bool((core >= enhancing).all())
    assert bool((enhancing.flatten(1).sum(1) > 0).all())
    assert examples.inputs.shape == (2, 4, 12, 12, 12)
    assert segmentation(1, size=(10, 10)).client(0).targets.shape == (2, 3, 10, 10)


def test_impossible_populations_are_refused() -> None:
    with pytest.raises(UsageError, match="cannot be made"):
        classification(3, per_client=0)
