"""Whole numbers, most of them small, to bytes and back: what a dithered quantizer makes of a message.

Every block of 256 successive numbers has a width (4 bits), which tells how likely each number is (`laplace`). Numbers
become symbols for the entropy coder (`rans`). Wide blocks send the low bits of their numbers as they are and code the
rest; numbers beyond the reach of their width are *escapes*, written in full. The bytes are: how many escapes there
are, the widths, the entropy coder's, low bits, and escapes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from progfed.codec import laplace, rans
from progfed.codec.bits import Array, pack, packed_size, unpack
from progfed.errors import MessageError

BLOCK = 256
CENTRE = 1 << 15
"""The dither of numbers that only fill the last block: in the middle, where a zero costs least."""

_COUNT = struct.Struct("<I")
_LARGE = 255  # the first byte of an escape that takes four more
_REACHES = np.array(laplace.REACHES, dtype=np.float32)
_WIDE = {width: shift for width, shift in enumerate(laplace.SHIFTS) if shift}
_ONES = np.ones(BLOCK, dtype=np.float32)


def padded(count: int) -> int:
    """How many numbers are coded: with as many zeros at the end as fill the last block and the last step."""
    unit = max(BLOCK, rans.lanes(count))
    return -(-count // unit) * unit


def overhead(count: int) -> int:
    """Bytes beside the entropy of so many numbers, about: the widths of blocks, and what the coder's lanes waste."""
    return 2 * _COUNT.size + packed_size(padded(count) // BLOCK, 4) + 3 * rans.lanes(count)


class Writer:
    """Takes the numbers of a message piece by piece, in whole blocks, and makes its bytes."""

    def __init__(self, count: int) -> None:
        self._lanes = rans.lanes(count)
        self._symbols = np.empty(padded(count), dtype=np.uint16)
        self._at = 0
        self._widths: list[Array] = []
        self._low: dict[int, list[Array]] = {width: [] for width in _WIDE}
        self._escapes: list[Array] = []

    def add(self, numbers: Array, dither: Array) -> None:
        """Take the next numbers.

        Args:
            numbers: Whole numbers in float32, in whole blocks; they are overwritten.
            dither: The 16 bits of dither of each.
        """
        blocks, sizes = numbers.reshape(-1, BLOCK), np.abs(numbers).reshape(-1, BLOCK)
        widths = laplace.width(sizes @ _ONES / BLOCK)  # sums of whole numbers: the same in every order
        for width in _WIDE if widths.max() >= min(_WIDE) else ():
            self._shift(blocks, sizes, (widths == width).nonzero()[0], width)
        beyond = sizes > _REACHES[widths][:, None]
        if beyond.any():
            self._escapes.append(blocks[beyond].astype(np.int64))
            blocks[beyond] = laplace.ESCAPE - laplace.REACH
        symbols = self._symbols[self._at : self._at + len(numbers)]
        numbers += laplace.REACH
        np.copyto(symbols, numbers, casting="unsafe")
        symbols |= dither >> 8 & 0xE0
        rows = symbols.reshape(-1, BLOCK)
        rows |= widths.astype(np.uint16)[:, None] << 8
        self._widths.append(widths)
        self._at += len(numbers)

    def data(self) -> bytes:
        """The bytes of all numbers."""
        escapes = _joined(self._escapes, np.int64)
        return b"".join(
            (
                _COUNT.pack(len(escapes)),
                pack(_joined(self._widths, np.uint8), 4).data,
                rans.encode(self._symbols, self._lanes),
                *(pack(_joined(low, np.uint8), _WIDE[width]).tobytes() for width, low in self._low.items()),
                write_escapes(escapes),
            )
        )

    def _shift(self, blocks: Array, sizes: Array, rows: Array, width: int) -> None:
        """Cut the low bits off the numbers of wide blocks, so that the rest is near zero."""
        shift = _WIDE[width]
        moved = blocks[rows].astype(np.int64) + (1 << shift >> 1)
        self._low[width].append((moved & (1 << shift) - 1).astype(np.uint8).reshape(-1))
        blocks[rows] = moved >> shift
        sizes[rows] = np.abs(moved >> shift)


class Reader:
    """Gives the numbers of a message back piece by piece; refuses bytes that no writer makes."""

    def __init__(self, data: memoryview, count: int) -> None:
        total = padded(count)
        blocks = total // BLOCK
        start = _COUNT.size + packed_size(blocks, 4)
        if len(data) < start:
            raise MessageError("length", f"{len(data)} bytes cannot hold the widths of {blocks} blocks")
        (escapes,) = _COUNT.unpack_from(data)
        self._widths = unpack(np.frombuffer(data[_COUNT.size : start], dtype=np.uint8), blocks, 4)
        self._coder = rans.Decoder(data[start:], rans.lanes(count))
        at = start + self._coder.size
        self._low: dict[int, Array] = {}
        for width, shift in _WIDE.items():
            many = BLOCK * int((self._widths == width).sum())
            size = packed_size(many, shift)
            if len(data) < at + size:
                raise MessageError("length", f"{len(data)} bytes cannot hold the low bits of {many} numbers")
            self._low[width] = unpack(np.frombuffer(data[at : at + size], dtype=np.uint8), many, shift)
            at += size
        self._escapes = read_escapes(data[at:], min(escapes, total + 1))
        self._block = 0

    def read(self, dither: Array) -> Array:
        """The next numbers as float32, one for each 16 bits of dither, in whole blocks."""
        widths = self._widths[self._block : self._block + len(dither) // BLOCK]
        self._block += len(widths)
        contexts = (dither & 0xE000).astype(np.uint32)
        blocks = contexts.reshape(-1, BLOCK)
        blocks |= rans.contexts(widths)[:, None]
        symbols = self._coder.read(contexts)
        numbers = symbols.astype(np.float32)
        numbers -= laplace.REACH
        if symbols.max() == laplace.ESCAPE:
            where = (symbols == laplace.ESCAPE).nonzero()[0]
            if len(where) > len(self._escapes):
                raise MessageError("coding", "there are fewer escapes than the symbols ask for")
            numbers[where], self._escapes = self._escapes[: len(where)], self._escapes[len(where) :]
        if widths.max() >= min(_WIDE):
            self._unshift(numbers.reshape(-1, BLOCK), widths)
        return numbers

    def finish(self) -> None:
        """Refuse bytes that hold more than was read."""
        self._coder.finish()
        if len(self._escapes):
            raise MessageError("coding", f"{len(self._escapes)} escapes are left over")

    def _unshift(self, blocks: Array, widths: Array) -> None:
        for width, shift in _WIDE.items():
            rows = (widths == width).nonzero()[0]
            low, self._low[width] = np.split(self._low[width], [BLOCK * len(rows)])
            high = blocks[rows].astype(np.float64) * (1 << shift) - (1 << shift >> 1)
            blocks[rows] = high + low.reshape(-1, BLOCK)


def write_escapes(numbers: Array) -> bytes:
    """Whole numbers as bytes: one for each from -127 to 127, five for any other."""
    coded = np.where(numbers < 0, -2 * numbers - 1, 2 * numbers)
    large = coded >= _LARGE
    return np.minimum(coded, _LARGE).astype(np.uint8).tobytes() + coded[large].astype("<u4").tobytes()


def read_escapes(data: memoryview, count: int) -> Array:
    """The inverse of `write_escapes`.

    Args:
        data: The bytes, and nothing after them.
        count: How many numbers they hold; another number is refused.
    """
    first = np.frombuffer(data[:count], dtype=np.uint8)
    large = (first == _LARGE).nonzero()[0]
    if len(first) != count or len(data) != count + 4 * len(large):
        raise MessageError("length", f"{len(data)} bytes do not hold {count} escapes")
    coded = first.astype(np.int64)
    coded[large] = np.frombuffer(data[count:], dtype="<u4")
    numbers: Array = np.where(coded & 1, -(coded >> 1) - 1, coded >> 1)
    return numbers


def _joined(arrays: Sequence[Array], kind: type) -> Array:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=kind)
