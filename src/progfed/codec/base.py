"""What a codec is: a value that turns named tensors into bytes and back, and knows how many bytes that takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from progfed.errors import MessageError
from progfed.tensors import Tensors

LIMIT = 1e31
"""The largest magnitude in a message: sums of larger numbers overflow. After rotating, rescaling and rotating back,
which some codecs do, a number up to it still fits a float32."""

Schema = dict[str, tuple[int, ...]]
"""The names and shapes of the float32 tensors in a message, in the order in which they are sent."""


def schema_of(tensors: Mapping[str, Tensor]) -> Schema:
    """Names and shapes in the canonical order, sorted by name."""
    return {name: tuple(tensors[name].shape) for name in sorted(tensors)}


def counts(schema: Schema) -> list[int]:
    """How many numbers each tensor of a schema holds."""
    return [math.prod(shape) for shape in schema.values()]


def numel(schema: Schema) -> int:
    """How many numbers the tensors of a schema hold."""
    return sum(counts(schema))


def shaped(flat: Tensor, schema: Schema) -> Tensors:
    """Numbers in a row as the tensors of a schema."""
    pieces = torch.split_with_sizes(flat, counts(schema))
    return {name: piece.view(shape) for (name, shape), piece in zip(schema.items(), pieces, strict=True)}


def check_finite(values: NDArray[Any], limit: float, *, of: str) -> None:
    """Refuse floats that are not finite, or beyond a limit."""
    if values.size:
        low, high = torch.aminmax(torch.from_numpy(values))
        if not (float(low) >= -limit and float(high) <= limit):
            raise MessageError("not finite", f"{of} holds numbers that are not finite or exceed {limit:g}")


class Codec(Protocol):
    """Turns named tensors into bytes and back. A codec has no state; `key` is the randomness of one encoding.

    What the decoder needs to know of the key is in the bytes. `decode` is given bytes whose digest was verified and
    whose length is at most `size(schema)`; it raises `MessageError` where they are not what the schema allows.
    """

    @property
    def name(self) -> str:
        """The codec by its published name, such as `LQ-8+SP-25`; it is part of every message."""
        ...

    @property
    def rate(self) -> float:
        """The nominal fraction of 4 bytes a parameter: what the paper's tables count."""
        ...

    @property
    def exact(self) -> bool:
        """Whether `size` is the length of every message, or only a bound that always holds."""
        ...

    def size(self, schema: Schema) -> int:
        """The length of the encoded tensors of this schema."""
        ...

    def estimate(self, schema: Schema) -> int:
        """The length that is to be expected; `size` where that is exact."""
        ...

    def encode(self, tensors: Mapping[str, Tensor], key: int) -> bytes: ...

    def decode(self, data: memoryview, schema: Schema) -> Tensors: ...


@dataclass(frozen=True)
class Float:
    """Uncompressed: little-endian float32, one tensor after the other."""

    name: str = "float"
    rate: float = 1.0
    exact: bool = True

    def size(self, schema: Schema) -> int:
        return 4 * numel(schema)

    def estimate(self, schema: Schema) -> int:
        return self.size(schema)

    def encode(self, tensors: Mapping[str, Tensor], key: int) -> bytes:
        return b"".join(np.ascontiguousarray(tensors[name].detach().numpy(), "<f4").data for name in sorted(tensors))

    def decode(self, data: memoryview, schema: Schema) -> Tensors:
        if len(data) != self.size(schema):
            raise MessageError("length", f"{len(data)} bytes instead of {self.size(schema)}")
        values = np.frombuffer(data, dtype="<f4").copy()
        check_finite(values, LIMIT, of="message")
        return shaped(torch.from_numpy(values), schema)
