"""One codec for the tensors of the model, and another for what travels beside them in the same message."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from progfed.codec.base import Codec, Schema
from progfed.errors import MessageError
from progfed.tensors import Tensors, aside

_LENGTH = struct.Struct("<Q")
T = TypeVar("T")


@dataclass(frozen=True)
class Apart:
    """Encodes the tensors of the model with `main` and those beside them, such as `c/E1.weight`, with `beside`.

    The body is that of the model, then that of the others. Before both stands the length of the first where that is
    not known from the schema.

    >>> from progfed.codec import Float, Quantize
    >>> Apart(Quantize(8), Float()).size({"E1.weight": (4,), "c/E1.weight": (4,)})
    28
    """

    main: Codec
    beside: Codec

    @property
    def name(self) -> str:
        return f"{self.main.name}, beside it {self.beside.name}"

    @property
    def rate(self) -> float:
        return self.main.rate

    @property
    def exact(self) -> bool:
        return self.main.exact and self.beside.exact

    def size(self, schema: Schema) -> int:
        model, others = _apart(schema)
        return self._prefix + self.main.size(model) + self.beside.size(others)

    def estimate(self, schema: Schema) -> int:
        model, others = _apart(schema)
        return self._prefix + self.main.estimate(model) + self.beside.estimate(others)

    def encode(self, tensors: Mapping[str, Tensor], key: int) -> bytes:
        model, others = _apart(tensors)
        first = self.main.encode(model, key)
        return self._told(len(first)) + first + self.beside.encode(others, key)

    def decode(self, data: memoryview, schema: Schema) -> Tensors:
        model, others = _apart(schema)
        length, limit = self.main.size(model), len(data) - self._prefix
        if not self.main.exact:
            if limit < 0:
                raise MessageError("length", f"{len(data)} bytes cannot hold the length of the first part")
            length = min(length, _LENGTH.unpack_from(data)[0])
        if length > limit:
            raise MessageError("length", f"a first part of {length} bytes, where {limit} are left")
        border = self._prefix + length
        return self.main.decode(data[self._prefix : border], model) | self._others(data[border:], others)

    def _others(self, data: memoryview, schema: Schema) -> Tensors:
        most = self.beside.size(schema)
        if len(data) > most or (self.beside.exact and len(data) != most):
            raise MessageError("length", f"{len(data)} bytes beside the model, where {most} are expected")
        return self.beside.decode(data, schema)

    @property
    def _prefix(self) -> int:
        return 0 if self.main.exact else _LENGTH.size

    def _told(self, length: int) -> bytes:
        return b"" if self.main.exact else _LENGTH.pack(length)


def _apart(named: Mapping[str, T]) -> tuple[dict[str, T], dict[str, T]]:
    """The model's own, and those beside it."""
    others = {name: value for name, value in named.items() if aside(name)}
    return {name: value for name, value in named.items() if name not in others}, others
