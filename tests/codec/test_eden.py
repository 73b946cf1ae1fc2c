from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from progfed import rng
from progfed.codec import Eden, schema_of
from progfed.codec.rotate import LARGEST
from progfed.errors import MessageError
from progfed.tensors import Tensors, finite


def through(values: np.ndarray, key: int = 0) -> np.ndarray:
    message = {"w": torch.from_numpy(np.asarray(values, dtype=np.float32))}
    return Eden().decode(memoryview(Eden().encode(message, key)), schema_of(message))["w"].double().numpy()


@pytest.mark.parametrize("length", [4096, 5000, LARGEST, 3 * LARGEST - 5])
@pytest.mark.parametrize("kind", ["normal", "sparse", "uneven"])
def test_the_error_is_that_of_the_signs_of_gaussian_numbers(length: int, kind: str) -> None:
    draw = rng.numpy_generator(0, length)
    values = draw.standard_normal(length)
    if kind == "sparse":
        values *= draw.random(length) < 0.15
    if kind == "uneven":
        values *= np.linspace(0.1, 10, length)
    error = np.square(through(values) - values).sum() / np.square(values).sum()
    assert abs(error - (math.pi / 2 - 1)) < 0.05


@pytest.mark.parametrize("length", [512, 700, 1024])
@pytest.mark.parametrize("kind", ["normal", "sparse", "uneven"])
def test_the_mean_over_many_keys_is_the_input(length: int, kind: str) -> None:
    draw, trials = rng.numpy_generator(1, length), 1500
    values = draw.standard_normal(length)
    if kind == "sparse":
        values *= draw.random(length) < 0.3
    if kind == "uneven":
        values *= np.linspace(0.1, 3, length)
    values = values.astype(np.float32).astype(np.float64)
    mean = sum(through(values, key) for key in range(trials)) / trials
    # independent errors of the variance above would leave this share of the norm; a bias would leave more
    left = np.square(mean - values).sum() / np.square(values).sum()
    assert left < 1.2 * (math.pi / 2 - 1) / trials
    scale = mean @ values / (values @ values)
    assert abs(scale - 1) < 5 * math.sqrt((math.pi / 2 - 1) / trials / length) + 1e-3


def test_the_part_of_a_message_along_its_input_is_always_right() -> None:
    values = rng.numpy_generator(2).standard_normal(2048)
    for key in range(10):
        assert abs(through(values, key) @ values / (values @ values) - 1) < 1e-4


def test_small_tensors_have_eight_bits_and_the_size_is_one_bit_a_number_and_little_more() -> None:
    draw = rng.generator(0)
    message = {"a": torch.randn(500, 400, generator=draw), "b": torch.randn(400, generator=draw)}
    data, schema = Eden().encode(message, 0), schema_of(message)
    assert len(data) == Eden().size(schema) == 8 + 400 + 8 + 4 * 7 + 25_000
    back = Eden().decode(memoryview(data), schema)
    span = float(message["b"].max() - message["b"].min())
    assert float((back["b"] - message["b"]).abs().max()) <= span / 255 + 1e-5


@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-30, 1.0, -1e30])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 100])
def test_constant_tensors_keep_their_mean(value: float, length: int) -> None:
    back = through(np.full(length, value))
    assert np.isfinite(back).all()
    if length:
        assert abs(back.mean() - np.float32(value)) <= 1e-5 * abs(value) + 1e-40


def test_scales_that_are_none_are_refused_and_every_changed_byte_gives_finite_tensors() -> None:
    message: Tensors = {"a": torch.randn(300, generator=rng.generator(0)), "b": torch.tensor(2.0)}
    data, schema, dice = Eden().encode(message, 0), schema_of(message), random.Random(0)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= dice.randrange(1, 256)
        try:
            back = Eden().decode(memoryview(changed), schema)
        except MessageError:
            continue
        assert schema_of(back) == schema
        assert finite(back)
    start = len(data) - 38 - 2 * 4  # two blocks, then 300 bits
    for bad in (-1.0, float("nan"), float("inf"), 1e38):
        changed = bytearray(data)
        changed[start : start + 4] = np.array(bad, dtype="<f4").tobytes()
        with pytest.raises(MessageError, match="EDEN-1 with a scale"):
            Eden().decode(memoryview(changed), schema)
