from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from progfed import rng
from progfed.codec import Sparsify, Top, schema_of
from progfed.codec.base import Codec
from progfed.errors import UsageError

keys = st.integers(0, 2**63 - 1)
floats = st.floats(min_value=-1.0000000150474662e30, max_value=1.0000000150474662e30, width=32)


def through(codec: Codec, values: np.ndarray, key: int = 0, *, cut: int = 0) -> np.ndarray:
    flat = torch.from_numpy(np.asarray(values, dtype=np.float32))
    message = {"a": flat[:cut], "b": flat[cut:]}
    back = codec.decode(memoryview(codec.encode(message, key)), schema_of(message))
    return torch.cat((back["a"], back["b"])).double().numpy()


@pytest.mark.parametrize("percent", [25, 10, 33, 50, 75, 1, 99])
@settings(max_examples=40, deadline=None)
@given(length=st.integers(0, 1000), cut=st.integers(0, 1000), key=keys)
def test_a_mask_keeps_its_share_and_scales_it(percent: int, length: int, cut: int, key: int) -> None:
    values = np.arange(1, length + 1, dtype=np.float64)
    back = through(Sparsify(percent), values, key, cut=min(cut, length))
    kept = np.flatnonzero(back)
    rest = length % (100 // math.gcd(percent, 100))
    head = length - rest
    assert (kept < head).sum() == head * percent // 100
    assert (kept >= head).sum() == math.ceil(rest * percent / 100)
    scale = np.full(length, 100 / percent)
    scale[head:] = rest / max(1, math.ceil(rest * percent / 100))
    np.testing.assert_allclose(back[kept], (values * scale)[kept], rtol=2.0**-22)


@pytest.mark.parametrize("percent", [25, 10, 30, 33, 75])
@pytest.mark.parametrize("length", [1, 3, 217])
def test_every_number_is_kept_with_the_same_probability_so_the_mean_is_the_input(percent: int, length: int) -> None:
    values, trials = np.ones(length), 500
    mean = sum(through(Sparsify(percent), values, key) for key in range(trials)) / trials
    # Hoeffding: each draw lies in [0, 100 / percent]; a miss by more than this for any number: below 1e-6.
    allowed = 100 / percent * math.sqrt(math.log(2 * length / 1e-6) / (2 * trials)) + 2.0**-22
    assert np.abs(mean - 1).max() <= allowed


def test_masks_of_different_keys_are_independent() -> None:
    first, second = (through(Sparsify(25), np.ones(100_000), key) > 0 for key in (1, 2))
    both = int((first & second).sum())
    assert abs(both - 6250) < 6 * math.sqrt(25_000 * 0.25 * 0.75)


def test_a_mask_without_rescaling_keeps_the_numbers_as_they_are() -> None:
    values = rng.numpy_generator(0).standard_normal(1000).astype(np.float32).astype(np.float64)
    back = through(Sparsify(10, rescale=False), values)
    assert_array_equal(back[back != 0], values[back != 0])
    assert (back != 0).sum() == 100


def test_only_a_seed_travels_for_a_mask() -> None:
    message = {"w": torch.randn(1000, generator=rng.generator(0))}
    data = Sparsify(25).encode(message, 4)
    back = Sparsify(25).decode(memoryview(data), schema_of(message))["w"]
    assert len(data) == 8 + 4 * 250
    assert_array_equal(np.frombuffer(data[8:], "<f4"), back[back != 0].numpy() / 4)


@pytest.mark.parametrize("percent", [10, 1, 50, 90])
@settings(max_examples=60, deadline=None)
@given(values=st.lists(floats, max_size=200), cut=st.integers(0, 200))
def test_top_keeps_exactly_what_sorting_would_keep(percent: int, values: list[float], cut: int) -> None:
    array = np.array(values, dtype=np.float64)
    count = math.ceil(len(values) * percent / 100)
    best = sorted(range(len(values)), key=lambda place: (-abs(values[place]), place))[:count]
    expected = np.zeros(len(values))
    expected[best] = array[best]
    assert_array_equal(through(Top(percent), array, cut=min(cut, len(values))), expected)


@pytest.mark.parametrize("shape", ["normal", "constant", "one spike", "misleading sample", "sorted"])
def test_top_is_exact_on_long_tensors_too(shape: str) -> None:
    length = 400_003
    values = np.abs(rng.numpy_generator(0).standard_normal(length)).astype(np.float32)
    if shape == "constant":
        values[:] = 1
    if shape == "one spike":
        values[:], values[123] = 0, 5
    if shape == "misleading sample":
        values[:: length // (1 << 15) | 1] = 100  # every number of the sample is large, few others are
        values[1::13] = 50
    if shape == "sorted":
        values.sort()
    back = through(Top(10), values, cut=1000)
    order = np.argsort(-values, kind="stable")[: math.ceil(length / 10)]
    expected = np.zeros(length)
    expected[order] = values[order]
    assert_array_equal(back, expected)
    assert ((back - values) ** 2).sum() <= 0.9 * (values.astype(np.float64) ** 2).sum()


def test_shares_that_make_no_sense_are_refused() -> None:
    for percent in (0, 100, -5):
        with pytest.raises(UsageError, match="from 1 to 99"):
            Sparsify(percent)
        with pytest.raises(UsageError, match="from 1 to 99"):
            Top(percent)
