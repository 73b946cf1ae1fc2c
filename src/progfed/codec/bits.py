"""Small numbers packed to real bits, and sorted positions coded in a length that is known beforehand.

Packing works on whole machine words in pieces that stay in the cache: shifts of a contiguous array run at the
speed of memory, while picking every second or fourth byte would not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from progfed import rng
from progfed.errors import MessageError

Bytes = NDArray[np.uint8]
Array = NDArray[Any]

PIECE = 1 << 15
"""Numbers handled at a time: their float32 scratch space stays in a 512 KiB cache."""

_WORDS: dict[int, tuple[str, tuple[int, ...], int]] = {
    4: ("<u2", (4,), 0x0F0F),
    2: ("<u4", (6, 12, 18), 0x03030303),
}


class Stream:
    """Random 64-bit words for a key, the same on every machine: NumPy never changes the words of a bit generator."""

    def __init__(self, seed: int, *key: rng.Key) -> None:
        self._source = np.random.SFC64(rng.number(seed, *key))

    def words(self, count: int, kind: str) -> Array:
        """`count` random numbers of an unsigned little-endian kind such as `<u2`."""
        each = 8 // np.dtype(kind).itemsize
        raw: Array = np.asarray(self._source.random_raw(-(-count // each)))
        return raw.astype("<u8", copy=False).view(kind)[:count]


def packed_size(count: int, bits: int) -> int:
    """Bytes that `count` numbers of this many bits take."""
    return (count * bits + 7) // 8


def pack(codes: Bytes, bits: int) -> Bytes:
    """Numbers below `2**bits`, one a byte, to `bits` each; the first one is in the lowest bits of the first byte.

    >>> pack(np.array([1, 2, 3], dtype=np.uint8), 4).tolist()
    [33, 3]
    """
    if bits == 8:
        return codes
    if bits == 1:
        return np.packbits(codes, bitorder="little")
    word, shifts, _ = _WORDS[bits]
    each = 8 // bits
    whole = len(codes) // each
    out = np.zeros(packed_size(len(codes), bits), dtype=np.uint8)
    source = codes[: whole * each].view(word)
    for start in range(0, whole, PIECE):
        piece = source[start : start + PIECE]
        folded = piece.copy()
        for shift in shifts:
            folded |= piece >> shift
        np.copyto(out[start : start + len(piece)], folded, casting="unsafe")
    for place, code in enumerate(codes[whole * each :].tolist()):
        out[whole] |= code << (bits * place)
    return out


def unpack(data: Bytes, count: int, bits: int) -> Bytes:
    """The inverse of `pack`: `count` numbers, one a byte."""
    if bits == 8:
        return data[:count]
    if bits == 1:
        return np.unpackbits(data, count=count, bitorder="little")
    word, shifts, mask = _WORDS[bits]
    out = np.empty(len(data) * 8 // bits, dtype=np.uint8)
    target = out.view(word)
    for start in range(0, len(data), PIECE):
        piece = data[start : start + PIECE].astype(word)
        spread = piece.copy()
        for shift in shifts:
            spread |= piece << shift
        np.bitwise_and(spread, spread.dtype.type(mask), out=target[start : start + len(piece)])
    return out[:count]


def positions_size(count: int, below: int) -> int:
    """Bytes of `pack_positions`: they depend on how many positions there are, not on which."""
    if not count:
        return 0
    low = _low_bits(count, below)
    high_size, low_size = packed_size(count + ((below - 1) >> low), 1), packed_size(count * low, 1)
    return min(high_size + low_size, packed_size(below, 1))


def pack_positions(positions: Array, below: int) -> bytes:
    """Increasing positions below a limit, as an Elias-Fano code or as a bitmap, whichever is shorter.

    Elias-Fano writes the low bits of every position as they are, and for the high bits sets one bit per position
    in a row of `count + limit / 2**low` bits: about `2 + log2(limit / count)` bits a position, less than one
    bit above what any code for random positions needs, and always the same number.
    """
    count = len(positions)
    if not count:
        return b""
    if _as_bitmap(count, below):
        bitmap = np.zeros(below, dtype=np.uint8)
        bitmap[positions] = 1
        return np.packbits(bitmap, bitorder="little").tobytes()
    low = _low_bits(count, below)
    high = np.zeros(count + ((below - 1) >> low), dtype=np.uint8)
    high[(positions >> low) + np.arange(count)] = 1
    rest = (positions & ((1 << low) - 1)).astype(np.uint8)
    fields = np.unpackbits(rest[:, None], axis=1, count=low, bitorder="little")
    return np.packbits(high, bitorder="little").tobytes() + np.packbits(fields, bitorder="little").tobytes()


def unpack_positions(data: Bytes, count: int, below: int) -> Array:
    """The inverse of `pack_positions`; refuses anything but `count` increasing positions below the limit."""
    if not count:
        return np.empty(0, dtype=np.int64)
    if _as_bitmap(count, below):
        found = np.flatnonzero(np.unpackbits(data, count=below, bitorder="little"))
        if len(found) != count:
            raise MessageError("positions", f"{len(found)} positions instead of {count}")
        return found
    low = _low_bits(count, below)
    row = count + ((below - 1) >> low)
    split = packed_size(row, 1)
    ones = np.flatnonzero(np.unpackbits(data[:split], count=row, bitorder="little"))
    if len(ones) != count:
        raise MessageError("positions", f"{len(ones)} positions instead of {count}")
    fields = np.unpackbits(data[split:], count=count * low, bitorder="little").reshape(count, low)
    rest = np.packbits(fields, axis=1, bitorder="little")[:, 0] if low else 0
    positions = ((ones - np.arange(count)) << low) | rest
    if positions[-1] >= below or not (positions[1:] > positions[:-1]).all():
        raise MessageError("positions", f"positions that do not increase, or reach beyond {below} numbers")
    return positions


def _low_bits(count: int, below: int) -> int:
    return min((below // count).bit_length() - 1, 8)


def _as_bitmap(count: int, below: int) -> bool:
    return positions_size(count, below) == packed_size(below, 1)
