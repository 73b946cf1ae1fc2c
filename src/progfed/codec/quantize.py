"""Linear quantization with stochastic rounding (paper, section "Compatibility": LQ-8, LQ-4, LQ-2).

Speed: encoding a large model on one core spends some 60 % in the seven passes of `_Rounding`, 20 % in drawing 16
random bits a number, the rest in finding ranges and in fresh memory for the bytes; packing hardly counts. The passes
run at the speed of the cache because they work on pieces of `PIECE` numbers; only a fused kernel would save more.
Decoding is two passes and the fresh memory of the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from progfed.codec.bits import PIECE, Array, Stream
from progfed.codec.step import DECODED_LIMIT, Coder, Flow, Layout
from progfed.errors import MessageError, UsageError

_SMALLEST_STEP = np.float32(2.0**-110)
"""Levels closer together than this are one level: its inverse would not fit a float32."""


@dataclass(frozen=True)
class Quantize(Coder):
    """Each number becomes one of `2**bits` levels, evenly spaced from the smallest to the largest of its tensor.

    Rounding is stochastic: up with a probability equal to the fraction of the step that is left over, so that the
    mean over many keys is the number itself. With step = (max - min) / (2**bits - 1), |x| the largest magnitude:

    - error of one number <= step + 2**-21 |x| + 2**-102;
    - error of the mean over keys <= 2**-13 step + 2**-21 |x| + 2**-102 (the random threshold has 16 bits).

    Args:
        bits: Bits for each number: 8, 4, 2 or 1.
        chunk: Take smallest and largest of every `chunk` successive numbers of the message instead of each tensor:
            finer steps, for 8 bytes a chunk.

    >>> Quantize(8).name, Quantize(4, chunk=1024).name
    ('LQ-8', 'LQ-4@1024')
    """

    bits: int
    chunk: int | None = None

    def __post_init__(self) -> None:
        if self.bits not in (1, 2, 4, 8):
            raise UsageError(f"cannot quantize to {self.bits} bits; choose 8, 4, 2 or 1")
        if self.chunk is not None and self.chunk < 8:
            raise UsageError(f"a chunk of {self.chunk} numbers is shorter than its range; choose 8 or more")

    @property
    def name(self) -> str:
        return f"LQ-{self.bits}" + (f"@{self.chunk}" if self.chunk else "")

    def side_size(self, tensors: int, total: int) -> int:
        return 8 * (-(-total // self.chunk) if self.chunk else tensors)

    def ranges(self, layout: Layout) -> Array:
        if self.chunk is None:
            return layout.bounds
        return np.minimum(np.arange(-(-layout.total // self.chunk) + 1) * self.chunk, layout.total)

    def forward(self, flow: Flow, key: int) -> tuple[bytes, Flow]:
        tables, bounds = self._tables(flow.arrays), flow.layout.bounds
        limits = _limits(tables)
        low, scale = limits[:, :1], _scale(self._step(limits))[:, None]
        codes, at, first, rounding = np.empty(bounds[-1], dtype=np.uint8), 0, 0, _Rounding(key, 2**self.bits - 1)
        for table in tables:
            out = codes[at : at + table.size].reshape(table.shape)
            for rows, columns in _pieces(*table.shape):
                those = slice(first + rows.start, first + rows.stop)
                rounding(table[rows, columns], low[those], scale[those], out[rows, columns])
            at, first = at + table.size, first + len(table)
        side = limits.astype("<f4", copy=False).tobytes()
        return side, Flow([codes[start:end] for start, end in pairwise(bounds.tolist())], self, side)

    def read(self, codes: Array, side: memoryview, ranges: Array) -> Array:
        limits = np.frombuffer(side, dtype="<f4").reshape(-1, 2)
        if not ((limits[:, 0] <= limits[:, 1]) & (np.abs(limits) <= DECODED_LIMIT).all(axis=1)).all():
            raise MessageError("range", f"{self.name} with a smallest number above the largest, or not finite")
        low, step = limits[:, 0], self._step(limits)
        if self.chunk is not None:
            counts = np.diff(ranges)
            spread: Array = codes * np.repeat(step, counts)
            spread += np.repeat(low, counts)
            return spread
        values = np.empty(len(codes), dtype=np.float32)
        for place, (start, end) in enumerate(pairwise(ranges.tolist())):
            for _, part in _pieces(1, end - start):
                piece = slice(start + part.start, start + part.stop)
                np.multiply(codes[piece], step[place], out=values[piece])
                values[piece] += low[place]
        return values

    def _step(self, limits: Array) -> Array:
        wide = limits.astype(np.float64)
        step: Array = ((wide[:, 1] - wide[:, 0]) / (2**self.bits - 1)).astype(np.float32)
        return step

    def _tables(self, arrays: list[Array]) -> list[Array]:
        """The numbers as tables of which every row has a range of its own."""
        if self.chunk is None:
            return [array.reshape(1, -1) for array in arrays]
        flat = np.concatenate(arrays) if arrays else np.empty(0, dtype=np.float32)
        whole = len(flat) // self.chunk * self.chunk
        rest = [flat[whole:].reshape(1, -1)] if whole < len(flat) else []
        return [flat[:whole].reshape(-1, self.chunk), *rest]


class _Rounding:
    """Stochastic rounding of one message, with its scratch space and its stream of random thresholds.

    Numbers are scaled so that one step is 65536; adding a random 16-bit number and dropping 16 bits rounds up with
    the right probability. The sum stays below 2**24, where a float32 still counts by ones.
    """

    def __init__(self, key: int, levels: int) -> None:
        self._random = Stream(key, "round")
        self._levels = np.int32(levels)
        self._scaled = np.empty(0, dtype=np.float32)
        self._whole = np.empty(0, dtype=np.int32)

    def __call__(self, values: Array, low: Array, scale: Array, out: Array) -> None:
        if values.size > len(self._scaled):
            self._scaled = np.empty(values.size, dtype=np.float32)
            self._whole = np.empty(values.size, dtype=np.int32)
        scaled = self._scaled[: values.size].reshape(values.shape)
        whole = self._whole[: values.size].reshape(values.shape)
        np.subtract(values, low, out=scaled)
        scaled *= scale
        scaled += self._random.words(values.size, "<u2").reshape(values.shape)
        np.copyto(whole, scaled, casting="unsafe")
        whole >>= 16
        np.minimum(whole, self._levels, out=whole)
        np.copyto(out, whole, casting="unsafe")


def _limits(tables: list[Array]) -> Array:
    """The smallest and the largest number of each row of the tables."""
    limits, first = np.zeros((sum(len(table) for table in tables), 2), dtype=np.float32), 0
    for table in tables:
        if table.size:
            table.min(axis=1, out=limits[first : first + len(table), 0])
            table.max(axis=1, out=limits[first : first + len(table), 1])
        first += len(table)
    return limits


def _scale(step: Array) -> Array:
    """The factor that makes one step 65536; 0 where all numbers of a range are alike."""
    scale: Array = np.where(step < _SMALLEST_STEP, np.float32(0), np.float32(65536) / np.maximum(step, _SMALLEST_STEP))
    return scale


def _pieces(rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Parts of a table of about `PIECE` numbers each: several rows, or a part of one."""
    height = max(1, PIECE // max(columns, 1))
    for row in range(0, rows, height):
        for column in range(0, columns, PIECE):
            yield slice(row, min(row + height, rows)), slice(column, min(column + PIECE, columns))
