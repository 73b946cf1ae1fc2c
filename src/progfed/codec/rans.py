"""An entropy coder (rANS, Duda 2013): a symbol that is expected with probability p takes about -log2(p) bits.

A state is a whole number that grows by that many bits with each symbol; when it is full, its low 16 bits are written
out as a word. Here thousands of states, the *lanes*, take turns: one step codes as many successive symbols as there are
lanes with a few array operations, at about 4 ns a symbol to encode and 3 ns to decode. All arithmetic is on whole
numbers, so the bytes are the same on every machine. The encoder runs from the last symbol to the first, the decoder
from the first on. Every lane costs three bytes beyond the entropy of its symbols.
"""

from __future__ import annotations

import struct
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from progfed.codec import laplace
from progfed.codec.bits import Array
from progfed.errors import MessageError

_FEWEST, _MOST = 4, 1 << 14
_TOTAL = 1 << laplace.BITS
_LOWEST = 1 << 16
"""States lie in [2**16, 2**32); where they begin, and where a decoder must end."""

_COUNT = struct.Struct("<I")


def lanes(count: int) -> int:
    """How many states code so many symbols: the power of two nearest to one for 896. More are faster and waste more."""
    nearest = ((2 * (count // 896) ** 2).bit_length() - 1) // 2
    return min(_MOST, max(_FEWEST, 1 << max(0, nearest)))


def contexts(widths: Array) -> Array:
    """What the widths of blocks contribute to the contexts of a `Decoder`, as bits to be combined by `|`.

    A context is this of its block's width, and the highest three of the 16 bits of dither of its number.
    """
    return (widths & 7).astype(np.uint32) << 10 | (widths >> 3).astype(np.uint32) << 16


def encode(symbols: Array, width: int) -> bytes:
    """The bytes of some symbols: how many words there are, the last states of the lanes, and the words.

    Args:
        symbols: Each with its context: `width of its block << 8 | eighth of its dither << 5 | symbol`. Their number is
            a multiple of the lanes.
        width: The number of lanes.
    """
    coder = _Encoder(width)
    words = [coder.step(symbols[end - width : end]) for end in range(len(symbols), 0, -width)]
    taken = np.concatenate(words[::-1]) if words else np.empty(0, dtype="<u2")
    return b"".join((_COUNT.pack(len(taken)), coder.states.astype("<u4").data, taken.data))


class _Encoder:
    """The states of an encoder, as whole numbers in float64: exact, and divided faster than integers."""

    def __init__(self, width: int) -> None:
        self.states = np.full(width, float(_LOWEST))
        self._index = np.empty(width, dtype=np.int64)
        self._frequency, self._start, self._scratch = (np.empty(width) for _ in range(3))
        self._full = np.empty(width, dtype=bool)

    def step(self, symbols: Array) -> Array:
        """Code one symbol in each lane; returns the words that did not fit."""
        frequencies, starts = _encoding()
        states, frequency, scratch = self.states, self._frequency, self._scratch
        np.copyto(self._index, symbols)
        np.take(frequencies, self._index, out=frequency, mode="wrap")
        np.take(starts, self._index, out=self._start, mode="wrap")
        np.multiply(frequency, 2.0**32 / _TOTAL, out=scratch)
        np.greater_equal(states, scratch, out=self._full)
        words = self._drain()
        # state // frequency * total + state % frequency + start
        np.divide(states, frequency, out=scratch)
        np.floor(scratch, out=scratch)
        np.subtract(float(_TOTAL), frequency, out=frequency)
        scratch *= frequency
        states += scratch
        states += self._start
        return words

    def _drain(self) -> Array:
        """Move the low 16 bits of full states out."""
        where = self._full.nonzero()[0]
        state = self.states[where]
        rest = np.floor(state / 2.0**16)
        self.states[where] = rest
        return (state - rest * 2.0**16).astype("<u2")


class Decoder:
    """Reads what `encode` wrote, in pieces; `size` is how many bytes that is.

    Args:
        data: The bytes, which may be followed by others.
        width: The number of lanes that they were written with.
    """

    def __init__(self, data: memoryview, width: int) -> None:
        fixed = _COUNT.size + 4 * width
        if len(data) < fixed:
            raise MessageError("length", f"{len(data)} bytes cannot hold the {width} states of an entropy coder")
        (count,) = _COUNT.unpack_from(data)
        self.size = fixed + 2 * count
        if len(data) < self.size:
            raise MessageError("length", f"{len(data)} bytes cannot hold {count} words of an entropy coder")
        self._states = np.frombuffer(data[_COUNT.size : fixed], dtype="<u4").astype(np.uint32)
        self._words = np.frombuffer(data[fixed : self.size], dtype="<u2").astype(np.uint32)
        self._read = 0
        self._index, self._entry, self._part = (np.empty(width, dtype=np.uint32) for _ in range(3))
        self._empty = np.empty(width, dtype=bool)
        self._tensors = [torch.from_numpy(array.view(np.int32)) for array in (self._index, self._entry)]

    def read(self, contexts: Array) -> Array:
        """The next symbols, one for each context; as many as a multiple of the lanes."""
        symbols, width = np.empty(len(contexts), dtype=np.uint8), len(self._states)
        for start in range(0, len(contexts), width):
            self._step(contexts[start : start + width], symbols[start : start + width])
        symbols &= laplace.SYMBOLS - 1
        return symbols

    def finish(self) -> None:
        """Refuse bytes that hold more than was read, or do not lead back to where an encoder begins."""
        if self._read != len(self._words) or (self._states != _LOWEST).any():
            raise MessageError("coding", "the entropy coder does not end where its bytes end")

    def _step(self, contexts: Array, out: Array) -> None:
        state, entry, part = self._states, self._entry, self._part
        np.bitwise_and(state, _TOTAL - 1, out=self._index)
        self._index |= contexts
        torch.index_select(_decoding(), 0, self._tensors[0], out=self._tensors[1])
        # frequency * (state // total) + place in the symbol's share
        state >>= laplace.BITS
        np.right_shift(entry, 21, out=part)
        state *= part
        np.bitwise_and(entry, _TOTAL - 1, out=part)
        state += part
        entry >>= 16
        np.copyto(out, entry, casting="unsafe")  # and a few bits of the frequency, which `read` cuts off
        np.less(state, _LOWEST, out=self._empty)
        where = self._empty.nonzero()[0]
        if len(where):
            words = self._words[self._read : self._read + len(where)]
            if len(words) < len(where):
                raise MessageError("coding", "the words of the entropy coder end too early")
            state[where] = state[where] << 16 | words
            self._read += len(where)


@lru_cache(maxsize=1)
def _encoding() -> tuple[Array, Array]:
    """The frequency of each symbol in each context, and where its share of the total begins."""
    table = laplace.frequencies()
    starts = np.cumsum(table, axis=2) - table
    return table.reshape(-1).astype(np.float64), starts.reshape(-1).astype(np.float64)


@lru_cache(maxsize=1)
def _decoding() -> Tensor:
    """For each context and the low bits of a state: `frequency << 21 | symbol << 16 | place in its share`."""
    shape = 2, 8, laplace.EIGHTHS, laplace.SYMBOLS
    table = laplace.frequencies().reshape(shape).swapaxes(1, 2).reshape(-1, laplace.SYMBOLS)
    starts = np.cumsum(table, axis=1) - table
    symbols = np.tile(np.arange(laplace.SYMBOLS), len(table)).repeat(table.reshape(-1))
    row = np.arange(len(table)).repeat(_TOTAL)
    place = np.tile(np.arange(_TOTAL), len(table)) - starts[row, symbols]
    entries = table[row, symbols] << 21 | symbols << 16 | place
    return torch.from_numpy(entries.astype(np.int32))
