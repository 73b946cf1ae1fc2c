from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from progfed import rng
from progfed.codec import Rotate, codec, schema_of
from progfed.codec.base import Codec
from progfed.codec.rotate import LARGEST


def rotated(values: np.ndarray, key: int = 0) -> np.ndarray:
    data = Rotate().encode({"w": torch.from_numpy(values.astype(np.float32))}, key)
    return np.frombuffer(data[8:], dtype="<f4").astype(np.float64)


def through(codec: Codec, values: np.ndarray, key: int = 0) -> np.ndarray:
    message = {"w": torch.from_numpy(values.astype(np.float32))}
    return codec.decode(memoryview(codec.encode(message, key)), schema_of(message))["w"].double().numpy()


def matrix(length: int, key: int) -> np.ndarray:
    return np.stack([rotated(row, key) for row in np.eye(length)], axis=1)


@pytest.mark.parametrize("length", [1, 2, 8, 64])
def test_for_a_power_of_two_it_is_the_hadamard_matrix_with_random_signs(length: int) -> None:
    hadamard = np.ones((1, 1))
    while len(hadamard) < length:
        hadamard = np.kron(hadamard, [[1, 1], [1, -1]])
    found = matrix(length, key=3) * math.sqrt(length)
    signs = found[0]
    np.testing.assert_allclose(np.abs(signs), 1, rtol=1e-6)
    np.testing.assert_allclose(found, hadamard * signs, rtol=1e-6)


@pytest.mark.parametrize("length", [3, 5, 7, 12, 33, 63])
def test_for_any_length_it_is_orthogonal_and_no_longer_than_the_input(length: int) -> None:
    found = matrix(length, key=1)
    assert found.shape == (length, length)
    np.testing.assert_allclose(found @ found.T, np.eye(length), atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(length=st.integers(0, 3000), scale=st.integers(-44, 30), key=st.integers(0, 2**63 - 1))
def test_rotating_back_gives_the_input(length: int, scale: int, key: int) -> None:
    values = rng.numpy_generator(0, length).uniform(-1, 1, length) * 10.0**scale
    values = values.astype(np.float32).astype(np.float64)
    error = np.linalg.norm(through(Rotate(), values, key) - values)
    assert error <= 2.0**-17 * np.linalg.norm(values) + 2.0**-120


@pytest.mark.parametrize("length", [LARGEST, LARGEST + 1, 3 * LARGEST - 5])
def test_long_tensors_are_rotated_in_blocks_and_keep_their_norm(length: int) -> None:
    values = rng.numpy_generator(0).standard_normal(length).astype(np.float32).astype(np.float64)
    norm = np.linalg.norm(values)
    assert abs(np.linalg.norm(rotated(values)) - norm) <= 2.0**-17 * norm
    assert np.linalg.norm(through(Rotate(), values) - values) <= 2.0**-17 * norm


def test_a_spike_is_spread_over_its_block_wherever_it_is() -> None:
    length = 3000
    for place in (0, 1500, 2047, 2048, 2999):
        spike = np.zeros(length)
        spike[place] = 1
        assert np.abs(rotated(spike)).max() <= 2 / math.sqrt(2048) * 4


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
def test_quantizing_a_rotated_tensor_errs_by_at_most_a_step_of_the_rotated_range(bits: int) -> None:
    values = rng.numpy_generator(0).standard_normal(5000).astype(np.float32).astype(np.float64)
    span = rotated(values, key=7)
    step = (span.max() - span.min()) / (2**bits - 1)
    error = np.linalg.norm(through(codec(f"ROT+LQ-{bits}"), values, 7) - values)
    assert error <= math.sqrt(len(values)) * step + 1e-4


def test_the_mean_of_rotated_quantizations_is_the_input() -> None:
    values = rng.numpy_generator(0).standard_normal(50).astype(np.float32).astype(np.float64)
    trials = 1000
    mean = sum(through(codec("ROT+LQ-4"), values, key) for key in range(trials)) / trials
    # A number's error is a unit combination of independent errors, each of two values a step apart, so Hoeffding's
    # bound for one holds for it; a step is at most 2 ||x|| / 15.
    step = 2 * np.linalg.norm(values) / 15
    assert np.abs(mean - values).max() <= step * (math.sqrt(math.log(2 * 50 / 1e-6) / (2 * trials)) + 2.0**-13 * 50)


def test_rotation_makes_the_error_far_smaller_where_one_number_is_large() -> None:
    values = rng.numpy_generator(0).standard_normal(20_000) * 0.01
    values[7777] = 100
    plain, turned = (np.linalg.norm(through(codec(name), values) - values) for name in ("LQ-8", "ROT+LQ-8"))
    assert turned < plain / 8
