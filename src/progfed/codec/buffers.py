"""A codec around another one that leaves buffers as they are, such as statistics of BatchNorm: rounding ruins them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from progfed.codec.base import Codec, Float, Schema
from progfed.errors import MessageError
from progfed.tensors import Tensors


@dataclass(frozen=True)
class ExactBuffers:
    """A codec for all tensors but those of these names, which go in front of its bytes as float32.

    Args:
        codec: Encodes the other tensors, as if they were the whole message.
        names: The tensors that are sent as floats; names that a message lacks do no harm.

    >>> from progfed.codec.quantize import Quantize
    >>> ExactBuffers(Quantize(2), frozenset({"mean"})).size({"mean": (8,), "weight": (8,)})
    42
    """

    codec: Codec
    names: frozenset[str]

    @property
    def name(self) -> str:
        return f"{self.codec.name}, buffers as floats"

    @property
    def rate(self) -> float:
        return self.codec.rate

    @property
    def exact(self) -> bool:
        return self.codec.exact

    def size(self, schema: Schema) -> int:
        floats, others = self._apart(schema)
        return Float().size(floats) + self.codec.size(others)

    def estimate(self, schema: Schema) -> int:
        floats, others = self._apart(schema)
        return Float().size(floats) + self.codec.estimate(others)

    def encode(self, tensors: Mapping[str, Tensor], key: int) -> bytes:
        floats = {name: value for name, value in tensors.items() if name in self.names}
        others = {name: value for name, value in tensors.items() if name not in self.names}
        return Float().encode(floats, key) + self.codec.encode(others, key)

    def decode(self, data: memoryview, schema: Schema) -> Tensors:
        floats, others = self._apart(schema)
        border = Float().size(floats)
        if len(data) < border:
            raise MessageError("length", f"{len(data)} bytes cannot hold {border} of buffers")
        found = Float().decode(data[:border], floats) | self.codec.decode(data[border:], others)
        return {name: found[name] for name in schema}

    def _apart(self, schema: Schema) -> tuple[Schema, Schema]:
        """The schema of the tensors that are sent as floats, and of the others."""
        floats = {name: shape for name, shape in schema.items() if name in self.names}
        return floats, {name: shape for name, shape in schema.items() if name not in self.names}
