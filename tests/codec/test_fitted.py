"""Messages of so many bits a number: as long as they may be, never longer, and without bias."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from progfed import rng
from progfed.codec import Dither, Fitted, codec, schema_of
from progfed.errors import UsageError
from progfed.tensors import Tensors


def message(kind: str, count: int) -> Tensors:
    draw = rng.numpy_generator(5)
    values = {
        "normal": draw.standard_normal(count),
        "laplace": draw.laplace(size=count),
        "sparse": draw.standard_normal(count) * (draw.random(count) < 0.1),
        "constant": np.full(count, -0.37),
        "outliers": draw.standard_normal(count) * np.where(draw.random(count) < 1e-3, 300, 1),
    }[kind].astype(np.float32)
    return {"a": torch.from_numpy(values[: count // 8]), "b": torch.from_numpy(values[count // 8 :])}


@pytest.mark.parametrize("bits", [0.2, 0.4, 0.7, 1.3, 3])
@pytest.mark.parametrize("kind", ["normal", "laplace", "sparse", "constant", "outliers"])
def test_a_message_is_nearly_as_long_as_it_may_be_and_never_longer(kind: str, bits: float) -> None:
    tensors, chosen = message(kind, 120_000), Fitted(bits)
    room = chosen.size(schema_of(tensors))
    assert room == int(bits * 120_000 / 8) == chosen.estimate(schema_of(tensors))
    assert 0.9 * room < len(chosen.encode(tensors, 1)) <= room


def test_more_bits_are_a_smaller_error() -> None:
    tensors = message("laplace", 60_000)
    errors = []
    for bits in (0.25, 0.5, 1, 2, 4):
        chosen = Fitted(bits)
        back = chosen.decode(memoryview(chosen.encode(tensors, 0)), schema_of(tensors))
        errors.append(sum(float(((back[name] - value) ** 2).sum()) for name, value in tensors.items()))
    assert all(more > 2 * less for more, less in pairwise(errors))


def test_the_mean_over_many_keys_is_the_input() -> None:
    values = rng.numpy_generator(0).standard_normal(2000)
    tensors, chosen, trials = {"w": torch.from_numpy(values.astype(np.float32))}, Fitted(1), 400
    schema = schema_of(tensors)
    total, steps = np.zeros(2000), []
    for key in range(trials):
        data = chosen.encode(tensors, key)
        steps.append(float(np.frombuffer(data[1:5], dtype="<f4")[0]))
        total += chosen.decode(memoryview(data), schema)["w"].double().numpy()
    # Hoeffding: each draw lies within a step; a miss by more than this for any number: below 1e-6
    noise = math.sqrt(math.log(2 * len(values) / 1e-6) / (2 * trials))
    assert np.abs(total / trials - values).max() <= max(steps) * noise


def test_what_needs_no_more_is_short_and_nearly_exact() -> None:
    one = {"w": torch.zeros(100_000)}
    one["w"][7] = -3.5
    for bits in (0.2, 8):
        data = Fitted(bits).encode(one, 0)
        assert len(data) < 1500
        assert (Fitted(bits).decode(memoryview(data), schema_of(one))["w"] - one["w"]).abs().max() < 1e-3
    few = {"w": torch.tensor([1.0, -2.0, 0.5])}
    chosen = Fitted(0.2)
    data = chosen.encode(few, 0)
    assert len(data) <= chosen.size(schema_of(few)) < 120
    assert (chosen.decode(memoryview(data), schema_of(few))["w"] - few["w"]).abs().max() < 0.02


def test_zeros_are_a_header() -> None:
    assert len(Fitted(1).encode({"w": torch.zeros(1000)}, 0)) == 13


def test_the_name_says_bits_and_both_kinds_of_messages_can_be_told_apart() -> None:
    assert codec("dq-0.7BIT") == Fitted(0.7)
    assert codec("DQ-1bit") == Fitted(1) != codec("DQ-1") == Dither(1)
    assert Fitted(1).name == "DQ-1bit"
    assert codec(Fitted(0.613).name) == Fitted(0.613)
    assert Fitted(0.5).rate == 0.5 / 32


@pytest.mark.parametrize("bits", [0.19, 8.001, 0.1234, -1])
def test_bits_that_make_no_sense_are_refused(bits: float) -> None:
    with pytest.raises(UsageError, match=r"choose 0\.2 to 8, in thousandths"):
        Fitted(bits)


def test_names_with_impossible_bits_are_refused_in_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"no codec is called 'DQ-0\.1bit': 0\.1 bits a number; choose 0\.2 to 8"):
        codec("DQ-0.1bit")


def test_a_large_message_fits_as_well_though_its_step_is_found_on_a_sample() -> None:
    tensors, chosen = message("laplace", 2_200_000), Fitted(0.7)
    tensors["c"] = torch.zeros(7)
    room = chosen.size(schema_of(tensors))
    assert 0.9 * room < len(chosen.encode(tensors, 1)) <= room
