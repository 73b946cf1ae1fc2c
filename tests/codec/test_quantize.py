from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from progfed import rng
from progfed.codec import Half, Quantize, schema_of
from progfed.codec.base import Codec
from progfed.errors import MessageError, UsageError

numbers = st.lists(st.floats(min_value=-1e30, max_value=1e30, allow_subnormal=True).map(np.float32), min_size=1)
keys = st.integers(0, 2**63 - 1)


def through(codec: Codec, values: np.ndarray, key: int = 0) -> np.ndarray:
    message = {"w": torch.from_numpy(np.asarray(values, dtype=np.float32))}
    return codec.decode(memoryview(codec.encode(message, key)), schema_of(message))["w"].double().numpy()


def step(values: np.ndarray, bits: int) -> float:
    return float(values.max() - values.min()) / (2**bits - 1)


def floor_error(values: np.ndarray) -> float:
    return 2.0**-21 * float(np.abs(values).max()) + 2.0**-102


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
@settings(max_examples=100, deadline=None)
@given(given_numbers=numbers, key=keys)
def test_the_error_is_at_most_one_step(bits: int, given_numbers: list[np.float32], key: int) -> None:
    values = np.array(given_numbers, dtype=np.float64)
    error = np.abs(through(Quantize(bits), values, key) - values).max()
    assert error <= step(values, bits) + floor_error(values)


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
@pytest.mark.parametrize("chunk", [8, 10, 1000, 100_000])
def test_with_chunks_the_error_is_at_most_the_step_of_the_chunk(bits: int, chunk: int) -> None:
    values = rng.numpy_generator(0).standard_normal(70_001).astype(np.float32).astype(np.float64)
    error = np.abs(through(Quantize(bits, chunk=chunk), values) - values)
    for start in range(0, len(values), chunk):
        part = values[start : start + chunk]
        assert error[start : start + chunk].max() <= step(part, bits) + floor_error(part)


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
@pytest.mark.parametrize("chunk", [None, 16])
def test_the_mean_over_many_keys_is_the_input(bits: int, chunk: int | None) -> None:
    values = np.concatenate((rng.numpy_generator(0).standard_normal(60), [5.0, -4.0])).astype(np.float32).astype(float)
    trials = 1000
    mean = sum(through(Quantize(bits, chunk=chunk), values, key) for key in range(trials)) / trials
    # Hoeffding: a mean of `trials` draws, each one of two levels a step apart, misses by more than this for any of
    # the numbers with probability below 1e-6.
    noise = math.sqrt(math.log(2 * len(values) / 1e-6) / (2 * trials))
    allowed = step(values, bits) * (noise + 2.0**-13) + floor_error(values)
    assert np.abs(mean - values).max() <= allowed


def test_rounding_up_has_the_probability_of_the_fraction_to_thirteen_bits() -> None:
    for fraction in (2.0**-16, 0.001, 0.3, 0.5, 0.999, 1 - 2.0**-16):
        values = np.full(500_002, fraction, dtype=np.float32)
        values[:2] = 0, 1
        ups = through(Quantize(1), values)[2:].mean()
        spread = math.sqrt(fraction * (1 - fraction) / 500_000)
        assert abs(ups - fraction) <= 5.5 * spread + 2.0**-13 + 2e-7


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
def test_numbers_on_the_levels_stay_as_they_are(bits: int) -> None:
    levels = np.arange(2**bits, dtype=np.float64) - 3
    for key in range(20):
        assert_array_equal(through(Quantize(bits), levels, key), levels)


@pytest.mark.parametrize("low", [2.849454879760742, 2.7380552291870117, 2.6582765579223633])
def test_the_largest_number_never_becomes_the_level_after_the_last(low: float) -> None:
    """For these ranges rounding puts the last level a little above 255; a code of 256 would be a 0 in a byte."""
    high = {2.849454879760742: 10.696527481079102, 2.7380552291870117: 3.168504476547241}.get(low, 2.809612274169922)
    values = np.full(600_000, high, dtype=np.float32)
    values[0] = low
    assert (np.abs(through(Quantize(8), values)[1:] - high) < 1e-5).all()


@pytest.mark.parametrize("constant", [0.0, 1.0, -3.7, 1e30, 1e-45, 1e-38])
def test_a_constant_tensor_is_exact(constant: float) -> None:
    values = np.full(77, constant, dtype=np.float32)
    assert_array_equal(through(Quantize(1), values), values.astype(np.float64))


def test_the_bytes_are_range_then_codes_from_the_lowest_bits_up() -> None:
    data = Quantize(4).encode({"w": torch.arange(16.0) - 5}, 0)
    assert_array_equal(np.frombuffer(data[:8], "<f4"), [-5.0, 10.0])
    assert data[8:].hex() == "1032547698badcfe"
    data = Quantize(2).encode({"a": torch.tensor([0.0, 3.0, 1.0]), "b": torch.tensor([0.0, 30.0])}, 0)
    assert data[16:] == bytes([0b00_01_11_00, 0b11])


def test_a_range_that_is_no_range_is_refused() -> None:
    schema = {"w": (4,)}
    for low, high in ((1.0, 0.0), (float("nan"), 1.0), (0.0, float("inf")), (-1e38, 1e38), (0.0, float("nan"))):
        data = np.array([low, high], dtype="<f4").tobytes() + bytes(4)
        with pytest.raises(MessageError, match="range"):
            Quantize(8).decode(memoryview(data), schema)


def test_bits_and_chunks_that_make_no_sense_are_refused() -> None:
    for make in (lambda: Quantize(3), lambda: Quantize(8, chunk=7), lambda: Quantize(16), lambda: Half("fp8")):
        with pytest.raises(UsageError):
            make()


@settings(max_examples=200, deadline=None)
@given(given_numbers=numbers)
def test_half_precision_rounds_to_nearest(given_numbers: list[np.float32]) -> None:
    values = np.array(given_numbers, dtype=np.float64)
    assert (np.abs(through(Half("bf16"), values) - values) <= 2.0**-8 * np.abs(values) + 2.0**-134).all()
    small = np.clip(values, -65504, 65504)
    assert (np.abs(through(Half("fp16"), small) - small) <= 2.0**-11 * np.abs(small) + 2.0**-25).all()
    assert_array_equal(through(Half("fp16"), small), small.astype(np.float32).astype(np.float16).astype(np.float64))


def test_float16_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(MessageError, match="use bf16"):
        Half("fp16").encode({"w": torch.tensor([1.0, 7e4])}, 0)
    with pytest.raises(MessageError):
        Half("fp16").decode(memoryview(np.array([np.inf, 0], dtype="<f2").tobytes()), {"w": (2,)})
