"""Random numbers by key: they repeat, they do not depend on each other, and all are equally likely."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from progfed import rng


@given(st.integers(0, 2**40), st.integers(1, 400), st.data())
def test_samples_are_without_replacement_in_range_and_repeat(seed: int, population: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, population))
    drawn = rng.sample(population, size, seed, "sample", 1)
    assert len(set(drawn)) == size
    assert min(drawn) >= 0
    assert max(drawn) < population
    assert list(drawn) == sorted(drawn)
    assert drawn == rng.sample(population, size, seed, "sample", 1)


def test_every_client_is_sampled_equally_often() -> None:
    rounds, population, size = 4000, 10, 3
    counts = torch.zeros(population)
    for number in range(rounds):
        for client in rng.sample(population, size, 0, "sample", number):
            counts[client] += 1
    expected = rounds * size / population
    assert (counts - expected).abs().max() < 5 * math.sqrt(expected)


def test_a_key_is_not_confused_with_another_that_reads_alike() -> None:
    assert len({rng.number(1, "a", 2), rng.number(1, "a", "2"), rng.number(12, "a"), rng.number(1, "2a")}) == 4


def test_the_default_generator_is_put_back() -> None:
    before = torch.get_rng_state()
    with rng.default(0, "init", 1):
        first = torch.rand(3)
    with rng.default(0, "init", 1):
        assert torch.equal(torch.rand(3), first)
    with pytest.raises(RuntimeError), rng.default(0, "init", 1):
        torch.ones(2) + torch.ones(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_stream_of_a_secret_is_normal_and_uniform() -> None:
    stream = rng.SecretStream(bytes(16), "check")
    drawn = stream.normal(400_000)
    assert abs(float(drawn.mean())) < 5 / math.sqrt(400_000)
    assert float(drawn.var()) == pytest.approx(1, rel=0.01)
    assert float((drawn**4).mean()) == pytest.approx(3, rel=0.03)
    assert float((drawn.abs() > 2).double().mean()) == pytest.approx(0.0455, rel=0.05)
    counts = np.bincount([stream.below(7) for _ in range(14_000)], minlength=7)
    assert counts.min() > 1800
    assert counts.max() < 2200
