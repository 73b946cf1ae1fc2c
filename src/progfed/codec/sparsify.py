"""Sparsification (paper, section "Compatibility": SP-25, SP-10): a random mask of which the seed travels, and top-k.

Speed: a mask costs drawing it, about 4 ns a kept number, and its gather or scatter, which touches another cache
line for every number. Top-k costs the passes that find candidates and, when decoding, the bits of the positions.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from dataclasses import dataclass
from math import gcd

import numpy as np

from progfed import rng
from progfed.codec.bits import PIECE, Array, Stream, pack_positions, positions_size, unpack_positions
from progfed.codec.step import Flow, Layout, Step
from progfed.errors import UsageError


@dataclass(frozen=True)
class Selector(Step):
    """A step that keeps some of the numbers of the message, and writes down their positions."""

    percent: int

    def __post_init__(self) -> None:
        if not 1 <= self.percent <= 99:
            raise UsageError(f"cannot keep {self.percent} % of the numbers; choose a whole percentage from 1 to 99")

    @property
    def rate(self) -> float:
        return self.percent / 100

    @abstractmethod
    def choose(self, flow: Flow, key: int) -> tuple[bytes, Array]:
        """The bytes that describe the chosen positions, and the positions in increasing order."""

    @abstractmethod
    def locate(self, side: memoryview, total: int) -> Array:
        """The positions that these bytes describe, among `total` numbers."""

    def forward(self, flow: Flow, key: int) -> tuple[bytes, Flow]:
        side, where = self.choose(flow, key)
        bounds = flow.layout.bounds
        cuts = np.searchsorted(where, bounds).tolist()
        kept = [
            array.take(where[start:end] - offset)
            for array, offset, start, end in zip(flow.arrays, bounds.tolist(), cuts, cuts[1:], strict=False)
        ]
        return side, Flow(kept, flow.coder, flow.side)

    def layout(self, side: memoryview, before: Layout) -> Layout:
        where = self.locate(side, before.total)
        return Layout(np.diff(np.searchsorted(where, before.bounds)), where)

    def back(self, values: Array, side: memoryview, layouts: tuple[Layout, Layout]) -> Array:
        before, after = layouts
        dense = np.zeros(before.total, dtype=np.float32)
        dense[after.where] = values
        return dense


@dataclass(frozen=True)
class Sparsify(Selector):
    """Keeps `percent` of the numbers, chosen at random, and scales them by 1/ratio so that the mean is unbiased.

    The mask is drawn in strata: of each `period` successive numbers exactly `keep` stay, an evenly spread pattern
    turned by a random offset (SP-25: one of four, SP-10: one of ten). Every number stays with the same probability,
    the count is always the same, and a receiver redraws the mask from 8 bytes. The rest of fewer than `period`
    numbers at the end is one short stratum that keeps its share, rounded up, scaled by its own ratio.

    A kept number decodes as x / ratio, any other as 0: the error is at most |x| max(1, 1/ratio - 1), and the mean
    over keys is x within 2**-22 |x|.

    Args:
        percent: How many of a hundred numbers are kept.
        rescale: False (`RAND-25`) leaves kept numbers as they are, which is biased and what error feedback needs (see
            `progfed.codec.feedback`).
    """

    rescale: bool = True

    @property
    def name(self) -> str:
        return f"{'SP' if self.rescale else 'RAND'}-{self.percent}"

    @property
    def _stratum(self) -> tuple[int, int]:
        common = gcd(self.percent, 100)
        return self.percent // common, 100 // common

    def side_size(self, tensors: int, total: int) -> int:
        return 8

    def kept(self, total: int) -> int:
        keep, period = self._stratum
        return keep * (total // period) + self._last(total)[0]

    def _last(self, total: int) -> tuple[int, int]:
        keep, period = self._stratum
        rest = total % period
        return -(-rest * keep // period), rest

    def choose(self, flow: Flow, key: int) -> tuple[bytes, Array]:
        side = struct.pack("<Q", rng.number(key, "mask"))
        return side, self.locate(memoryview(side), flow.layout.total)

    def locate(self, side: memoryview, total: int) -> Array:
        keep, period = self._stratum
        groups = total // period
        random = Stream(struct.unpack("<Q", side)[0])
        where = np.empty(self.kept(total), dtype=np.int64)
        body, table = where[: groups * keep].reshape(groups, keep), _turns(keep, period)
        for first in range(0, groups, PIECE):
            piece = body[first : first + PIECE]
            turn = _below(period, random.words(len(piece), "<u4"))
            np.take(table, turn, axis=0, out=piece, mode="clip")
            piece += np.arange(first * period, (first + len(piece)) * period, period)[:, None]
        if total % period:
            turn = _below(total % period, random.words(1, "<u4"))
            where[groups * keep :] = groups * period + _turns(*self._last(total))[turn[0]]
        return where

    def back(self, values: Array, side: memoryview, layouts: tuple[Layout, Layout]) -> Array:
        if self.rescale:
            (keep, period), (last, rest) = self._stratum, self._last(layouts[0].total)
            values[: len(values) - last] *= np.float32(period / keep)
            values[len(values) - last :] *= np.float32(rest / max(last, 1))
        return super().back(values, side, layouts)


@dataclass(frozen=True)
class Top(Selector):
    """Keeps the `percent` of the numbers with the largest magnitude in the whole message, as they are.

    Ties go to the earlier number, so the bytes do not depend on how the search is done. The positions are coded in
    a length that is the same for every message (see `pack_positions`). Biased: squared error <= (1 - ratio) ||x||^2.
    """

    @property
    def name(self) -> str:
        return f"TOP-{self.percent}"

    def side_size(self, tensors: int, total: int) -> int:
        return positions_size(self.kept(total), total)

    def kept(self, total: int) -> int:
        return -(-total * self.percent // 100)

    def choose(self, flow: Flow, key: int) -> tuple[bytes, Array]:
        total = flow.layout.total
        where = _largest(flow.floats(), self.kept(total), total)
        return pack_positions(where, total), where

    def locate(self, side: memoryview, total: int) -> Array:
        return unpack_positions(np.frombuffer(side, dtype=np.uint8), self.kept(total), total)


def _turns(keep: int, period: int) -> Array:
    """`keep` of `period` positions, evenly spread, turned by every offset; each row increases."""
    pattern = np.arange(keep) * period // keep
    return np.sort((pattern[None, :] + np.arange(period)[:, None]) % period, axis=1)


def _below(limit: int, words: Array) -> Array:
    """Numbers below `limit` from random 32-bit words: the high half of a 64-bit product."""
    wide: Array = words.astype(np.uint64)
    wide *= np.uint64(limit)
    wide >>= np.uint64(32)
    return wide


def _largest(arrays: list[Array], count: int, total: int) -> Array:
    """Positions of the `count` largest magnitudes, increasing.

    A sample gives a threshold that a few more than `count` numbers should exceed; only those are searched
    exactly. Where the sample misled, all numbers are searched.
    """
    if not count:
        return np.empty(0, dtype=np.int64)
    where, found = _above(arrays, _guess(arrays, count / total, total))
    if len(where) < count:
        where, found = _above(arrays, 0.0)
    threshold = np.partition(found, len(found) - count)[len(found) - count]
    chosen = found > threshold
    ties = np.flatnonzero(found == threshold)
    chosen[ties[: count - int(chosen.sum())]] = True
    kept: Array = where[chosen]
    return kept


def _guess(arrays: list[Array], ratio: float, total: int) -> float:
    stride = total // PIECE | 1  # odd, so that it does not follow the columns of a layer
    sample = np.abs(np.concatenate([array[::stride] for array in arrays]))
    wanted = int(len(sample) * ratio + 4 * (len(sample) * ratio) ** 0.5) + 1
    return float(np.partition(sample, len(sample) - wanted)[len(sample) - wanted]) if wanted <= len(sample) else 0.0


def _above(arrays: list[Array], threshold: float) -> tuple[Array, Array]:
    where, found, offset = [], [], 0
    for array in arrays:
        for start in range(0, len(array), PIECE):
            size = np.abs(array[start : start + PIECE])
            places = np.flatnonzero(size >= threshold)
            found.append(size[places])
            where.append(places + (offset + start))
        offset += len(array)
    return np.concatenate(where), np.concatenate(found)
