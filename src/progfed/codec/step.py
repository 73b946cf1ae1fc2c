"""What codecs are made of: steps that run left to right when encoding and right to left when decoding.

A step is one of three things. A *coder* (quantization, half precision) writes every number in fewer bits. A
*selector* (random mask, top-k) keeps some of the numbers. A *rotation* mixes the numbers of a tensor. Each is a
codec by itself, and `Chain` puts several in a row. The bytes of a message are what each step has to tell its
decoder (ranges, a seed, positions), in the order of the steps, then the numbers that are left.

Encoding refuses numbers that are not finite or that exceed `LIMIT`: an update with such numbers is broken, sums of
them overflow, and a mask could hide them from the server's own check. Whatever decodes is therefore finite.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from progfed.codec import bits as wire
from progfed.codec.base import LIMIT, Schema, check_finite, counts, numel, shaped
from progfed.codec.bits import Array
from progfed.errors import MessageError
from progfed.tensors import Tensors

DECODED_LIMIT = 512 * LIMIT
"""The largest magnitude that a decoder accepts: a rotation can concentrate two blocks in one number."""


@dataclass(frozen=True)
class Layout:
    """How the numbers that a step leaves belong to tensors.

    `counts` says how many each tensor has. `where` gives their positions among the numbers before the step; None: the
    step left all of them.
    """

    counts: Array
    where: Array | None = None

    @property
    def bounds(self) -> Array:
        """Where each tensor begins, and where the last one ends."""
        return np.concatenate(([0], np.cumsum(self.counts))).astype(np.int64)

    @property
    def total(self) -> int:
        return int(self.counts.sum())


@dataclass(frozen=True)
class Flow:
    """Numbers on their way through the steps: one flat array for each tensor, of floats or of a coder's codes."""

    arrays: list[Array]
    coder: Coder | None = None
    side: bytes = b""

    @property
    def layout(self) -> Layout:
        return Layout(np.array([len(array) for array in self.arrays], dtype=np.int64))

    def floats(self) -> list[Array]:
        """The numbers as the receiver will read them."""
        if self.coder is None or not self.arrays:
            return self.arrays
        layout, codes = self.layout, np.concatenate(self.arrays)
        return np.split(self.coder.read(codes, memoryview(self.side), self.coder.ranges(layout)), layout.bounds[1:-1])


class Step(ABC):
    """One step, which is also a codec by itself."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def rate(self) -> float: ...

    @property
    def exact(self) -> bool:
        return True

    def side_size(self, tensors: int, total: int) -> int:
        """Bytes that this step writes beside the numbers."""
        return 0

    def kept(self, total: int) -> int:
        """How many of `total` numbers this step leaves."""
        return total

    @abstractmethod
    def forward(self, flow: Flow, key: int) -> tuple[bytes, Flow]: ...

    def layout(self, side: memoryview, before: Layout) -> Layout:
        """The layout after this step, which the decoder reads from the bytes that the step wrote."""
        return before

    def back(self, values: Array, side: memoryview, layouts: tuple[Layout, Layout]) -> Array:
        """Undo `forward` on floats; `layouts` are those before and after it."""
        return values

    def size(self, schema: Schema) -> int:
        return size_of((self,), schema)

    def estimate(self, schema: Schema) -> int:
        return self.size(schema)

    def encode(self, tensors: Mapping[str, Tensor], key: int) -> bytes:
        return encode((self,), tensors, key)

    def decode(self, data: memoryview, schema: Schema) -> Tensors:
        return decode((self,), data, schema)


class Coder(Step):
    """A step that writes each number in fewer bits, independently of the others once the ranges are known."""

    bits: int

    @property
    def rate(self) -> float:
        return self.bits / 32

    def ranges(self, layout: Layout) -> Array:
        """Where each group of numbers that share a range begins, and where the last one ends."""
        return layout.bounds

    @abstractmethod
    def read(self, codes: Array, side: memoryview, ranges: Array) -> Array:
        """The floats that the codes stand for; refuses what is not finite."""


def name_of(steps: Sequence[Step]) -> str:
    """The published name of steps in a row."""
    return "+".join(step.name for step in steps)


def size_of(steps: Sequence[Step], schema: Schema) -> int:
    """The length of every message of these steps."""
    return _size(steps, len(schema), numel(schema))


def _size(steps: Sequence[Step], tensors: int, total: int) -> int:
    sides = 0
    for step in steps:
        sides += step.side_size(tensors, total)
        total = step.kept(total)
    return sides + wire.packed_size(total, _bits(steps))


def encode(steps: Sequence[Step], tensors: Mapping[str, Tensor], key: int) -> bytes:
    """Run the steps left to right, then pack what is left."""
    flow, sides = Flow([flat(name, tensors[name]) for name in sorted(tensors)]), []
    for step in steps:
        side, flow = step.forward(flow, key)
        sides.append(side)
    bits = _bits(steps)
    if bits >= 8:
        return b"".join((*sides, *(np.ascontiguousarray(array).data for array in flow.arrays)))
    codes = np.concatenate(flow.arrays) if flow.arrays else np.empty(0, dtype=np.uint8)
    return b"".join((*sides, wire.pack(codes, bits).data))


def decode(steps: Sequence[Step], data: memoryview, schema: Schema) -> Tensors:
    """Read what each step wrote beside the numbers, then undo the steps right to left.

    The coder goes first wherever it stands: it reads each number by itself, so it need not wait for the numbers
    that a mask left out to be put back.
    """
    size = size_of(steps, schema)
    if len(data) != size:
        raise MessageError("length", f"{len(data)} bytes instead of {size} for {name_of(steps)}")
    layouts, sides, at = [Layout(np.array(counts(schema), dtype=np.int64))], [], 0
    for step in steps:
        end = at + step.side_size(len(schema), layouts[-1].total)
        sides.append(data[at:end])
        layouts.append(step.layout(sides[-1], layouts[-1]))
        at = end
    values = _floats(steps, data[at:], sides, layouts)
    for place in reversed(range(len(steps))):
        values = steps[place].back(values, sides[place], (layouts[place], layouts[place + 1]))
    return shaped(torch.from_numpy(values), schema)


def flat(name: str, tensor: Tensor) -> Array:
    """The numbers of a tensor in a row, as float32; refuses what is not finite or exceeds `LIMIT`."""
    row: Array = tensor.detach().to("cpu", torch.float32).reshape(-1).numpy()
    check_finite(row, LIMIT, of=f"tensor {name}")
    return row


def _bits(steps: Sequence[Step]) -> int:
    return next((step.bits for step in steps if isinstance(step, Coder)), 32)


def _floats(steps: Sequence[Step], data: memoryview, sides: list[memoryview], layouts: list[Layout]) -> Array:
    total = layouts[-1].total
    place = next((place for place, step in enumerate(steps) if isinstance(step, Coder)), None)
    if place is None:
        values = np.frombuffer(data, dtype="<f4").copy()
        check_finite(values, DECODED_LIMIT, of="message")
        return values
    coder = steps[place]
    assert isinstance(coder, Coder)
    codes = np.frombuffer(data, dtype="<u2" if coder.bits == 16 else np.uint8)
    if coder.bits < 16:
        codes = wire.unpack(codes, total, coder.bits)
    ranges = coder.ranges(layouts[place])
    after = layouts[-1].where if len(layouts) > place + 2 else None
    if after is not None:  # numbers were left out after they were coded
        ranges = np.searchsorted(after, ranges)
    return coder.read(codes, sides[place], ranges)
