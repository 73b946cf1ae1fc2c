from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from progfed import rng
from progfed.codec.bits import pack, pack_positions, packed_size, positions_size, unpack, unpack_positions
from progfed.errors import MessageError


def packed_by_hand(codes: list[int], bits: int) -> bytes:
    number = sum(code << (bits * place) for place, code in enumerate(codes))
    return number.to_bytes(packed_size(len(codes), bits), "little")


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_packed_bits_are_one_long_number_with_the_first_code_lowest(bits: int, data: st.DataObject) -> None:
    codes = data.draw(st.lists(st.integers(0, 2**bits - 1), max_size=50))
    packed = pack(np.array(codes, dtype=np.uint8), bits)
    assert packed.tobytes() == packed_by_hand(codes, bits)
    assert unpack(packed, len(codes), bits).tolist() == codes


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
def test_packing_goes_on_over_the_end_of_a_piece(bits: int) -> None:
    codes = rng.numpy_generator(0).integers(0, 2**bits, 300_001).astype(np.uint8)
    assert_array_equal(unpack(pack(codes, bits), len(codes), bits), codes)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), below=st.integers(1, 400))
def test_positions_come_back_and_their_size_does_not_depend_on_which(data: st.DataObject, below: int) -> None:
    chosen = sorted(data.draw(st.sets(st.integers(0, below - 1))))
    packed = pack_positions(np.array(chosen, dtype=np.int64), below)
    assert len(packed) == positions_size(len(chosen), below)
    assert len(packed) <= packed_size(below, 1)
    assert unpack_positions(np.frombuffer(packed, dtype=np.uint8), len(chosen), below).tolist() == chosen


@pytest.mark.parametrize("ratio", [0.01, 0.05, 0.1, 0.25, 0.5])
def test_positions_take_less_than_a_bit_more_than_the_entropy(ratio: float) -> None:
    below = 1_000_000
    count = round(ratio * below)
    entropy = -below * (ratio * math.log2(ratio) + (1 - ratio) * math.log2(1 - ratio))
    assert entropy <= 8 * positions_size(count, below) <= entropy + count


@settings(max_examples=200, deadline=None)
@given(noise=st.randoms(use_true_random=False), below=st.integers(1, 300), data=st.data())
def test_any_bytes_are_positions_or_refused(noise: object, below: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, below))
    row = np.frombuffer(
        data.draw(st.binary(min_size=positions_size(count, below), max_size=positions_size(count, below))), np.uint8
    )
    try:
        positions = unpack_positions(row, count, below).tolist()
    except MessageError:
        return
    assert positions == sorted(set(positions))
    assert len(positions) == count
    assert 0 <= positions[0] <= positions[-1] < below


def test_equal_positions_and_positions_beyond_the_end_are_refused() -> None:
    count, below = 10, 100
    good = bytearray(pack_positions(np.arange(10) * 8, below))
    low = positions_size(count, below) - packed_size(3 * count, 1)
    assert unpack_positions(np.frombuffer(bytes(good), np.uint8), count, below).tolist() == list(range(0, 80, 8))
    both = pack_positions(np.array([0, 1, *range(16, 80, 8)]), below)
    same = both[:low] + bytes(len(both) - low)
    with pytest.raises(MessageError, match="do not increase"):
        unpack_positions(np.frombuffer(same, np.uint8), count, below)
    last = bytearray(pack_positions(np.arange(90, 100), below))
    last[low:] = b"\xff" * (len(last) - low)
    with pytest.raises(MessageError, match="beyond"):
        unpack_positions(np.frombuffer(bytes(last), np.uint8), count, below)
