"""Random Hadamard rotation: spreads every number over its block, so that a few large ones do not set the levels.

Speed: log2(block) passes of additions, each at the speed of the cache; nothing but additions and subtractions in
a fixed order, so the result is the same to the bit on every machine and with every number of threads.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from progfed import rng
from progfed.codec.bits import Array, Stream
from progfed.codec.step import Flow, Layout, Step

LARGEST = 1 << 15
"""The longest block: two of them in float32 stay in the cache."""


@dataclass(frozen=True)
class Rotate(Step):
    """An orthogonal transform of each tensor by itself, `H D / sqrt(n)` with random signs `D`, in blocks.

    A block is the largest power of two that fits the tensor, at most `LARGEST`. Where the last numbers do not fill
    a block, one more block is laid over the end, across numbers that were rotated before: nothing is padded, the
    size stays the same and so does the norm, for any length. The signs are drawn from 8 bytes that travel.

    By itself it changes nothing but the last bits: ||decoded - x|| <= 2**-17 ||x|| + 2**-120 per tensor. Before a
    quantizer (`ROT+LQ-4`) the error is the quantizer's, in the range of the rotated numbers, rotated back.
    """

    @property
    def name(self) -> str:
        return "ROT"

    @property
    def rate(self) -> float:
        return 1.0

    def side_size(self, tensors: int, total: int) -> int:
        return 8

    def forward(self, flow: Flow, key: int) -> tuple[bytes, Flow]:
        side = struct.pack("<Q", rng.number(key, "rotate"))
        hadamard = _Hadamard(side)
        arrays = [array.copy() for array in flow.arrays]
        for array in arrays:
            for block, signs in hadamard.blocks(array):
                block *= signs
                hadamard.transform(block)
        return side, Flow(arrays)

    def back(self, values: Array, side: memoryview, layouts: tuple[Layout, Layout]) -> Array:
        hadamard = _Hadamard(bytes(side))
        for array in np.split(values, layouts[0].bounds[1:-1]):
            for block, signs in reversed(hadamard.blocks(array)):
                hadamard.transform(block)
                block *= signs
        return values


def _block_size(count: int) -> int:
    """The largest power of two that fits a tensor of so many numbers, at most `LARGEST`."""
    return min(LARGEST, 1 << max(0, count.bit_length() - 1))


def block_starts(count: int) -> list[int]:
    """Where the blocks of a tensor begin; the last one may overlap the one before."""
    size = _block_size(count)
    whole = list(range(0, count - size + 1, size))
    return [*whole, count - size] if count % size else whole


class _Hadamard:
    """Signs and scratch space for the rotation of one message."""

    def __init__(self, seed: bytes) -> None:
        drawn = np.unpackbits(Stream(struct.unpack("<Q", seed)[0]).words(LARGEST // 8, "<u1"), bitorder="little")
        self._signs = 1 - 2 * drawn.astype(np.float32)
        self._scratch = np.empty((2, LARGEST), dtype=np.float32)

    def blocks(self, array: Array) -> list[tuple[Array, Array]]:
        """Views of the blocks of a tensor in the order of rotation, each with its signs."""
        size = _block_size(len(array))
        return [(array[start : start + size], self._signs[:size]) for start in block_starts(len(array))]

    def transform(self, block: Array) -> None:
        """The orthogonal Walsh-Hadamard transform in place: every pass adds and subtracts neighbours into two halves.

        A pass moves the last bit of the position to the front, so after log2(n) passes all bits are back in place
        and each was transformed once; every pass reads and writes in the same, regular pattern.
        """
        block *= np.float32(len(block) ** -0.5)  # first, so that no sum exceeds the norm
        source, target = block, self._scratch[0, : len(block)]
        for turn in range(len(block).bit_length() - 1):
            left, right = source[0::2], source[1::2]
            middle = len(block) // 2
            np.add(left, right, out=target[:middle])
            np.subtract(left, right, out=target[middle:])
            source, target = target, self._scratch[(turn + 1) % 2, : len(block)]
        if source is not block:
            block[:] = source
