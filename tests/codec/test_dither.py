from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from progfed import rng
from progfed.codec import Dither, codec, numel, schema_of
from progfed.codec.dither import FINER, SMALL, smallest
from progfed.errors import MessageError, UsageError
from progfed.tensors import Tensors, finite
from progfed.wire.message import DOWN, Envelope, message_size, seal, unseal

numbers = st.lists(st.floats(min_value=-1e30, max_value=1e30, allow_subnormal=True).map(np.float32), min_size=1)
keys = st.integers(0, 2**63 - 1)


def through(step: float, values: np.ndarray, key: int = 0) -> np.ndarray:
    message = {"w": torch.from_numpy(np.asarray(values, dtype=np.float32))}
    chosen = Dither(step)
    return chosen.decode(memoryview(chosen.encode(message, key)), schema_of(message))["w"].double().numpy()


def spacing(step: float, values: np.ndarray) -> float:
    """The largest step that a message of these numbers may have: 8 significant bits of step * RMS."""
    return step * float(np.sqrt(np.square(values).mean())) * (1 + 2.0**-8)


def floor_error(values: np.ndarray) -> float:
    return 2.0**-21 * float(np.abs(values).max()) + 2.0**-90


def like_a_model(scale: float = 1.0) -> Tensors:
    """Tensors of different sizes and magnitudes, with heavy tails."""
    draw = rng.numpy_generator(3)
    shapes = {"E1.w": (32, 3, 3, 3), "E1.b": (32,), "E2.w": (64, 32, 3, 3), "E3.w": (64, 512), "G3.w": (10, 64)}
    return {
        name: torch.from_numpy((scale * spread * draw.laplace(0, 1, shape)).astype(np.float32))
        for spread, (name, shape) in zip((5, 12, 1.5, 0.5, 3), shapes.items(), strict=True)
    }


@pytest.mark.parametrize("step", [0.1, 0.7, 1.5, 4, 10])
@settings(max_examples=60, deadline=None)
@given(given_numbers=numbers, key=keys)
def test_the_error_is_at_most_half_a_step(step: float, given_numbers: list[np.float32], key: int) -> None:
    values = np.array(given_numbers, dtype=np.float64)
    error = np.abs(through(step, values, key) - values).max()
    assert error <= spacing(step, values) / 2 + floor_error(values)


@pytest.mark.parametrize("step", [0.25, 1.5, 6])
@pytest.mark.parametrize("kind", ["normal", "sparse", "constant", "one"])
def test_the_mean_over_many_keys_is_the_input(step: float, kind: str) -> None:
    draw = rng.numpy_generator(0)
    values = {
        "normal": draw.standard_normal(300),
        "sparse": draw.standard_normal(300) * (draw.random(300) < 0.1),
        "constant": np.full(300, 0.37),
        "one": np.array([-2.5]),
    }[kind]
    values, trials = values.astype(np.float32).astype(np.float64), 1000
    mean = sum(through(step, values, key) for key in range(trials)) / trials
    # Hoeffding: each draw lies within a step; a miss by more than this for any number: below 1e-6.
    noise = math.sqrt(math.log(2 * len(values) / 1e-6) / (2 * trials))
    assert np.abs(mean - values).max() <= spacing(step, values) * (noise + 2.0**-16) + floor_error(values)


@pytest.mark.parametrize("step", [0.5, 1.5, 4])
@pytest.mark.parametrize("kind", ["normal", "sparse", "constant"])
def test_the_error_is_uniform_noise_whatever_the_numbers(step: float, kind: str) -> None:
    draw, count = rng.numpy_generator(1), 300_000
    values = {
        "normal": draw.standard_normal(count),
        "sparse": draw.standard_normal(count) * (draw.random(count) < 0.1),
        "constant": np.full(count, 0.37),
    }[kind].astype(np.float32)
    error = (through(step, values) - values) / spacing(step, values)
    assert abs(np.square(error).mean() * 12 - 1) < 0.02
    assert abs(error.mean()) < 5 * math.sqrt(1 / 12 / count)
    assert abs(np.corrcoef(error[:-1], error[1:])[0, 1]) < 5 / math.sqrt(count)
    for quantile in (0.1, 0.5, 0.9):
        assert abs(np.quantile(error, quantile) - (quantile - 0.5)) < 0.01


def test_one_step_serves_the_whole_message_and_the_smallest_tensors_have_a_finer_one() -> None:
    message = like_a_model()
    back = Dither(1.5).decode(memoryview(Dither(1.5).encode(message, 0)), schema_of(message))
    flat = np.concatenate([value.numpy().reshape(-1) for value in message.values()]).astype(np.float64)
    step = spacing(1.5, flat)
    small = {"E1.b", "G3.w"}  # 672 of 53,400 numbers; with E1.w they would be more than 1/64
    for name, value in message.items():
        error = (back[name] - value).abs().max()
        own = step / FINER if name in small else step
        assert 0.4 * own < error <= own / 2 + 1e-4


def test_the_smallest_tensors_hold_a_sixty_fourth_at_most() -> None:
    assert smallest([]) == []
    assert smallest([0, 0]) == [0, 1]
    assert smallest([1]) == []
    assert smallest([63, 1]) == [1]
    assert smallest([62, 1]) == []
    assert smallest([3, 6400, 3, 3]) == [0, 2, 3]
    sizes = rng.numpy_generator(0).integers(1, 10_000, 50).tolist()
    assert 0 < sum(sizes[place] for place in smallest(sizes)) <= sum(sizes) / SMALL


@pytest.mark.parametrize("step", [0.25, 0.5, 1, 1.5, 2, 3, 4])
def test_an_equally_wide_message_is_about_as_long_as_estimated(step: float) -> None:
    values = rng.numpy_generator(2).laplace(0, 1, 400_000).astype(np.float32)
    message = {"w": torch.from_numpy(values)}
    chosen = Dither(step)
    length = len(chosen.encode(message, 0))
    assert abs(length / chosen.estimate(schema_of(message)) - 1) < 0.05
    assert length < 0.8 * chosen.size(schema_of(message))


def test_a_message_of_different_tensors_is_shorter_than_estimated() -> None:
    message = like_a_model()
    for step in (1, 1.5, 3):
        chosen = Dither(step)
        assert len(chosen.encode(message, 0)) < chosen.estimate(schema_of(message))


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-3, 1.0, 1e20, 1e28])
def test_the_length_does_not_depend_on_the_unit(scale: float) -> None:
    lengths = [len(Dither(1.5).encode(like_a_model(unit), 0)) for unit in (1.0, scale)]
    assert abs(lengths[0] / lengths[1] - 1) < 0.01


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 1e-38, 1e-36])
def test_numbers_too_small_for_a_step_become_zero(value: float) -> None:
    message = {"w": torch.full((77,), value)}
    data = Dither(1.5).encode(message, 0)
    assert len(data) == 13
    assert not Dither(1.5).decode(memoryview(data), schema_of(message))["w"].any()


def test_hardly_anything_takes_hardly_any_bytes() -> None:
    values = torch.zeros(200_000)
    values[::5000] = 1.0
    message = {"w": values}
    assert len(Dither(2).encode(message, 0)) < 0.02 * 200_000


def uneven(count: int) -> Tensors:
    """All that is not zero in a tensor with the finer step: as many numbers as possible that do not fit a byte."""
    return {"a": torch.ones(count // SMALL), "b": torch.zeros(count - count // SMALL)}


@pytest.mark.parametrize("step", [0.1, 0.25, 1.5, 10])
@pytest.mark.parametrize("count", [1, 2, 10, 300, 5000, 100_000])
def test_the_bound_holds_for_the_worst_messages(step: float, count: int) -> None:
    draw = rng.generator(0)
    noise = torch.randn(count, generator=draw)
    for message in (uneven(count), {"w": noise}, {"w": noise**9}, {"w": noise.exp().exp().clamp(max=1e30)}):
        assert len(Dither(step).encode(message, 0)) <= Dither(step).size(schema_of(message))


@pytest.mark.parametrize("name", ["DQ-0.25", "DQ-1.5", "DQ-4"])
def test_every_changed_byte_is_refused_or_decodes_to_finite_tensors_of_the_schema(name: str) -> None:
    chosen, dice = codec(name), random.Random(0)
    for message in (like_a_model(), {"w": torch.randn(20, generator=rng.generator(0))}, {"w": torch.zeros(5)}):
        schema = schema_of(message)
        data = chosen.encode(message, 0)
        for place in (*range(min(len(data), 400)), *dice.sample(range(len(data)), min(len(data), 200))):
            changed = bytearray(data)
            changed[place] ^= dice.randrange(1, 256)
            try:
                back = chosen.decode(memoryview(changed), schema)
            except MessageError:
                continue
            assert schema_of(back) == schema
            assert finite(back)


def test_a_step_that_is_none_and_kinds_that_are_none_are_refused() -> None:
    message = {"w": torch.randn(20, generator=rng.generator(0))}
    data, schema = Dither(1.5).encode(message, 0), schema_of(message)
    for step in (float("nan"), float("inf"), -1.0, 0.0, 1e-40, 1e36):
        changed = data[:1] + np.array(step, dtype="<f4").tobytes() + data[5:]
        with pytest.raises(MessageError, match="range"):
            Dither(1.5).decode(memoryview(changed), schema)
    for kind in (0, 3, 255):
        with pytest.raises(MessageError, match="range"):
            Dither(1.5).decode(memoryview(bytes([kind]) + data[1:]), schema)


def test_numbers_that_would_not_fit_a_float_are_refused() -> None:
    schema = {"w": (1000,)}
    header = b"\1" + np.array(1e32, dtype="<f4").tobytes() + bytes(8)
    small = Dither(0.1).decode(memoryview(header + bytes(1000)), schema)
    assert finite(small)
    with pytest.raises(MessageError, match="not finite or exceed"):
        Dither(0.1).decode(memoryview(header + b"\xff" + bytes(999) + b"\xff" * 4), schema)


def test_a_sealed_message_is_shorter_than_its_bound_and_refused_where_it_is_cut() -> None:
    message, envelope = like_a_model(), Envelope(DOWN, "0" * 16, 1, 1)
    schema, chosen = schema_of(message), Dither(1.5)
    sealed = seal(envelope, message, chosen, 0)
    assert len(sealed) < 0.3 * message_size(chosen, schema)
    _, tensors = unseal(sealed, envelope, schema, chosen)
    assert schema_of(tensors) == schema
    for wrong in (sealed[:-1], sealed + b"\0", sealed[:200], sealed[:-1] + bytes([sealed[-1] ^ 1])):
        with pytest.raises(MessageError, match=r"length|digest"):
            unseal(wrong, envelope, schema, chosen)


def test_steps_that_make_no_sense_are_refused() -> None:
    for step in (0.0, 0.09, 10.5, -1.0, float("nan"), float("inf"), 1.2345):
        with pytest.raises(UsageError, match=r"choose 0\.1 to 10"):
            Dither(step)


def test_a_whole_number_of_root_mean_squares_is_the_same_step() -> None:
    assert repr(Dither(2)) == repr(Dither(2.0)) == repr(codec("DQ-2")) == repr(codec("dq-2.000")) == "Dither(step=2.0)"


def test_both_directions_of_a_large_message_are_the_same_in_pieces_of_any_tensors() -> None:
    """Tensors only name the numbers: cut differently (none of them small), they are the same bytes and values."""
    flat = torch.randn(70_000, generator=rng.generator(5))
    whole, cut = {"w": flat}, {"a": flat[:30_000], "b": flat[30_000:]}
    first, second = (Dither(1.5).encode(message, 3) for message in (whole, cut))
    assert first == second
    back = Dither(1.5).decode(memoryview(first), schema_of(cut))
    assert torch.equal(torch.cat((back["a"], back["b"])), Dither(1.5).decode(memoryview(first), schema_of(whole))["w"])
    assert numel(schema_of(cut)) == 70_000
