"""The entropy coder: exact on anything, close to the entropy, and safe against any bytes."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from progfed import rng
from progfed.codec import laplace, rans
from progfed.codec.bits import PIECE
from progfed.codec.entropy import BLOCK, Reader, Writer, overhead, padded, read_escapes, write_escapes
from progfed.errors import MessageError


def written(numbers: np.ndarray, dither: np.ndarray, count: int) -> bytes:
    writer = Writer(count)
    for start in range(0, len(numbers), PIECE):
        writer.add(numbers[start : start + PIECE].astype(np.float32), dither[start : start + PIECE])
    return writer.data()


def reading(data: bytes, dither: np.ndarray, count: int) -> np.ndarray:
    reader = Reader(memoryview(data), count)
    found = [reader.read(dither[start : start + PIECE]) for start in range(0, len(dither), PIECE)]
    reader.finish()
    return np.concatenate(found)


def drawn(mean: float, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Laplace distributed numbers, quantized with dither."""
    draw = rng.numpy_generator(seed)
    dither = draw.integers(0, 2**16, padded(count)).astype(np.uint16)
    return np.floor(draw.laplace(0, mean, padded(count)) + (dither + 0.5) / 2**16), dither


def test_frequencies_fill_their_total_and_never_change() -> None:
    table = laplace.frequencies()
    assert table.shape == (16, laplace.EIGHTHS, laplace.SYMBOLS)
    assert (table.sum(axis=2) == 2**laplace.BITS).all()
    for width, reach in enumerate(laplace.REACHES):
        alive = np.abs(np.arange(-laplace.REACH, laplace.REACH + 1)) <= reach
        assert (table[width, :, : laplace.ESCAPE][:, alive] >= 1).all()
        assert not table[width, :, : laplace.ESCAPE][:, ~alive].any()
    assert hashlib.sha256(table.astype("<i8").tobytes()).hexdigest()[:16] == "d3104e29cf9ebe36"


@pytest.mark.parametrize("mean", [0.0, 0.003, 0.03, 0.3, 1.0, 3.0, 30.0, 3000.0, 3e6])
@pytest.mark.parametrize("count", [1, 255, 256, 3000, 40_000, 300_001])
def test_numbers_of_any_width_come_back(mean: float, count: int) -> None:
    numbers, dither = drawn(mean, count)
    assert_array_equal(reading(written(numbers, dither, count), dither, count), numbers.astype(np.float32))


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_whole_numbers_come_back(data: st.DataObject) -> None:
    few = data.draw(st.lists(st.integers(-(2**24), 2**24), min_size=1, max_size=20))
    small = data.draw(st.lists(st.integers(-20, 20), min_size=1, max_size=50))
    numbers = np.resize(np.array(few + small * data.draw(st.integers(1, 20))), padded(2000)).astype(np.float64)
    dither = rng.numpy_generator(data.draw(st.integers(0, 99))).integers(0, 2**16, len(numbers)).astype(np.uint16)
    assert_array_equal(reading(written(numbers, dither, 2000), dither, 2000), numbers)


@pytest.mark.parametrize("mean", [0.03, 0.1, 0.25, 0.6, 1.2, 2.5, 10.0])
def test_laplace_numbers_take_little_more_than_their_entropy(mean: float) -> None:
    count = 1_000_000
    numbers, dither = drawn(mean, count)
    ideal = laplace.entropy(mean) * count / 8
    slack = 1.02 if 0.1 <= mean <= 1.5 else 1.05  # widths beyond are an octave or two apart
    assert ideal < len(written(numbers, dither, count)) <= slack * ideal + overhead(count)


def test_knowing_the_dither_saves_what_theory_says() -> None:
    """The rate is the mutual information over uniform noise, of a Gaussian here: above 1/2 log2(1 + SNR)."""
    count, step = 1_000_000, 1.5
    draw = rng.numpy_generator(1)
    dither = draw.integers(0, 2**16, padded(count)).astype(np.uint16)
    numbers = np.floor(draw.standard_normal(padded(count)) / step + (dither + 0.5) / 2**16)
    bits = 8 * (len(written(numbers, dither, count)) - overhead(count)) / count
    _, frequency = np.unique(numbers, return_counts=True)
    share = frequency / frequency.sum()
    unaware = -(share * np.log2(share)).sum()
    assert 0.5 * np.log2(1 + 12 / step**2) < bits < 0.97 * unaware


def test_blocks_of_different_widths_cost_what_each_would_alone() -> None:
    count = 512 * BLOCK
    narrow, dither = drawn(0.05, count)
    wide, _ = drawn(1.0, count)
    odd = np.arange(count) // BLOCK % 2 == 1
    mixed = len(written(np.where(odd[: len(narrow)], wide, narrow), dither, count)) - overhead(count)
    alone = [len(written(numbers, dither, count)) - overhead(count) for numbers in (narrow, wide)]
    assert mixed <= 1.02 * sum(alone) / 2


def test_escapes_take_a_byte_or_five() -> None:
    numbers = np.array([0, -1, 1, 127, -127, 128, -128, 2**30, -(2**30)])
    data = write_escapes(numbers)
    assert len(data) == 9 + 4 * 4
    assert_array_equal(read_escapes(memoryview(data), 9), numbers)
    for wrong in (data[:-1], data + b"\0", b""):
        with pytest.raises(MessageError, match="escapes"):
            read_escapes(memoryview(wrong), 9)


def test_lanes_are_a_power_of_two_near_one_for_896_symbols() -> None:
    assert [rans.lanes(count) for count in (0, 1, 1000, 122_570, 11_220_132, 10**9)] == [4, 4, 4, 128, 16384, 16384]
    for count in range(4096, 10**6, 9973):
        assert 0.7 < count / 896 / rans.lanes(count) < 1.45


@pytest.mark.parametrize("mean", [0.05, 0.7, 20.0])
def test_every_changed_byte_is_refused_or_gives_as_many_numbers(mean: float) -> None:
    numbers, dither = drawn(mean, 1000)
    data, dice, refused = written(numbers, dither, 1000), random.Random(0), 0
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= dice.randrange(1, 256)
        try:
            assert np.isfinite(reading(bytes(changed), dither, 1000)).all()
        except MessageError:
            refused += 1
    # what is written as it is cannot betray itself: low bits of wide blocks, and the escapes
    assert refused >= (0.95 if mean < 1 else 0.3) * len(data)


@settings(max_examples=200, deadline=None)
@given(noise=st.binary(max_size=700))
def test_noise_is_refused(noise: bytes) -> None:
    _, dither = drawn(1.0, 1000)
    with pytest.raises(MessageError):
        reading(noise, dither, 1000)
