"""Dithered quantization for a length: the sender finds the finest step with which its message fits.

Who pays for bytes names bytes: with `DQ-0.7bit` a message takes 0.7 bits a number, whatever the numbers are, and the
step follows from them. A step of so many root mean squares (`DQ-1.5`) says how much noise there is, and leaves open
how long a message is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from torch import Tensor

from progfed.codec import entropy, laplace
from progfed.codec.base import Codec, Schema, numel, schema_of
from progfed.codec.bits import Array
from progfed.codec.buffers import ExactBuffers
from progfed.codec.dither import FINER, HEADER_SIZE, read, root_mean_square, smallest, written
from progfed.codec.step import flat
from progfed.errors import UsageError
from progfed.tensors import Tensors

FINEST = 0.01
"""No step is finer than this many root mean squares: what is left then is less than any training notices."""

COARSEST = 100.0
"""Nor any coarser, except where even that does not fit: with so few bits as that, a message says next to nothing."""

_AIM, _ENOUGH, _TRIES = 0.985, 0.96, 6
_GRID = np.arange(-10, 3.01, 0.25)


@dataclass(frozen=True)
class Fitted:
    """As `Dither`, but with the step that makes a message as long as it may be: at most so many bits a number.

    `size` is a bound that always holds, and most messages come within 4 % of it. What is said of the error in `Dither`
    holds for the step of each message, which is in it.

    >>> Fitted(0.7).name, Fitted(0.7).size({"w": (80_000,)})
    ('DQ-0.7bit', 7000)
    """

    bits: float

    def __post_init__(self) -> None:
        if not 0.2 <= self.bits <= 8 or round(self.bits, 3) != self.bits:
            raise UsageError(f"{self.bits:g} bits a number; choose 0.2 to 8, in thousandths at most")
        object.__setattr__(self, "bits", float(self.bits))

    @property
    def name(self) -> str:
        return f"DQ-{self.bits:g}bit"

    @property
    def rate(self) -> float:
        return self.bits / 32

    @property
    def exact(self) -> bool:
        return False

    def size(self, schema: Schema) -> int:
        """So many bits a number, or what a message of few numbers takes even with the coarsest of steps."""
        total = numel(schema)
        return max(int(self.bits * total / 8), HEADER_SIZE + entropy.overhead(total) + 64)

    def estimate(self, schema: Schema) -> int:
        return self.size(schema)

    def encode(self, tensors: Mapping[str, Tensor], key: int) -> bytes:
        arrays, room = [flat(name, tensors[name]) for name in sorted(tensors)], self.size(schema_of(tensors))
        size = root_mean_square(arrays)
        if not size:
            return written(arrays, 0.0, key)
        low, high, best = FINEST * size, COARSEST * size, b""
        expected = _Expected(arrays)
        step = expected.step(_AIM * room, low, high)
        if expected.sample:  # to be wrong by less at the first try, where each takes long
            tried = len(written(expected.sample, step, key))
            step = expected.corrected(_AIM * room, low, high, _Expected(expected.sample).ratio(step, tried))
        for _ in range(_TRIES):
            data = written(arrays, step, key)
            if len(data) <= room:
                best, high = data, step
                if len(data) >= _ENOUGH * room or step <= 1.01 * FINEST * size:
                    break
            else:
                low = step
            step = expected.corrected(_AIM * room, low, high, expected.ratio(step, len(data)))
        while not best:
            high *= 2
            data = written(arrays, high, key)
            best = data if len(data) <= room else b""
        return best

    def decode(self, data: memoryview, schema: Schema) -> Tensors:
        return read(data, schema, self)


def bits_of(codec: Codec) -> float | None:
    """The bits a number that a codec of this kind may take, also around buffers; None for other codecs."""
    if isinstance(codec, ExactBuffers):
        return bits_of(codec.codec)
    return codec.bits if isinstance(codec, Fitted) else None


def with_bits(codec: Codec, bits: float) -> Codec:
    """The codec of so many bits a number, which leaves buffers as they are where this one does."""
    return ExactBuffers(with_bits(codec.codec, bits), codec.names) if isinstance(codec, ExactBuffers) else Fitted(bits)


class _Expected:
    """How long a message is with each step, about: from the mean magnitude of every block of its numbers.

    Of a large message a `sample` of the blocks is enough.
    """

    def __init__(self, arrays: list[Array]) -> None:
        total, self.sample = sum(map(len, arrays)), _sample(arrays)
        arrays = self.sample or arrays
        few = set(smallest([len(array) for array in arrays]))
        blocks = [_blocks(array, FINER if place in few else 1) for place, array in enumerate(arrays)]
        self._means, self._sizes = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        self._sizes *= total / sum(map(len, arrays))
        self._overhead = HEADER_SIZE + entropy.overhead(total)

    def size(self, step: float) -> float:
        """The bytes of a message with this step."""
        means = np.log2(np.maximum(self._means / step, 2.0**-20))
        bits = np.interp(means, _GRID, _entropies()) + np.maximum(means - _GRID[-1], 0)
        return self._overhead + float(bits @ self._sizes) / 8

    def step(self, size: float, low: float, high: float) -> float:
        """The step between two others that makes a message this long; the nearer of the two where none does."""
        for _ in range(20):
            middle = math.sqrt(low) * math.sqrt(high)
            low, high = (middle, high) if self.size(middle) > size else (low, middle)
        return high

    def ratio(self, step: float, length: int) -> float:
        """How many times longer than it was a message with this step was expected to be, apart from the overhead."""
        return (self.size(step) - self._overhead) / max(length - self._overhead, 1)

    def corrected(self, size: float, low: float, high: float, ratio: float) -> float:
        """As `step`, where messages were expected to be `ratio` times longer than they are.

        What is wrong by much is not trusted: the step is then halfway between the two.
        """
        found = self.step(self._overhead + (size - self._overhead) * ratio, low, high)
        inside = 1.001 * low < found < high / 1.001
        return found if inside else math.sqrt(low) * math.sqrt(high)


def _sample(arrays: list[Array]) -> list[Array]:
    """Every 32nd block of the larger tensors of a large message; nothing of a small one."""
    if sum(map(len, arrays)) < 1 << 21:
        return []
    unit = 32 * entropy.BLOCK
    return [
        array[: len(array) // unit * unit].reshape(-1, unit)[:, : entropy.BLOCK].reshape(-1)
        for array in arrays
        if len(array) >= unit
    ]


def _blocks(array: Array, factor: int) -> tuple[Array, Array]:
    """The mean magnitude of each block of a tensor's numbers, times a factor, and how many numbers the block has."""
    starts = np.arange(0, len(array), entropy.BLOCK)
    sizes = np.diff(np.append(starts, len(array))).astype(np.float64)
    sums = np.add.reduceat(np.abs(array), starts, dtype=np.float64) if len(array) else np.empty(0)
    return factor * sums / sizes, sizes


@lru_cache(maxsize=1)
def _entropies() -> Array:
    """The bits of a number in blocks of the mean magnitudes `2**_GRID`; in wider ones each doubling takes one more."""
    return np.array([laplace.entropy(float(2.0**place)) for place in _GRID])
