"""Several steps in a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from torch import Tensor

from progfed.codec import step as pipeline
from progfed.codec.base import Schema
from progfed.codec.rotate import Rotate
from progfed.codec.sparsify import Selector
from progfed.codec.step import Coder, Step
from progfed.errors import UsageError
from progfed.tensors import Tensors


@dataclass(frozen=True)
class Chain:
    """Steps from left to right when encoding, from right to left when decoding; the name lists them in that order.

    `LQ-8+SP-25` quantizes every tensor to 8 bits and then keeps a random 25 % of the quantized numbers: 8 bits for
    each kept number, 2 bits a parameter. The levels span all numbers of a tensor. `SP-25+LQ-8` is as long, but
    masks first, so that the levels span only the kept ones. `ROT+LQ-4` rotates, then quantizes.

    >>> from progfed.codec.quantize import Quantize
    >>> from progfed.codec.sparsify import Sparsify
    >>> Chain((Quantize(8), Sparsify(25))).name
    'LQ-8+SP-25'
    """

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        kinds = [_kind(step) for step in self.steps]
        if not kinds:
            raise UsageError("a chain needs at least one step; without compression use the codec float")
        if len(set(kinds)) < len(kinds):
            raise UsageError(f"codec {self.name} has two steps of one kind; keep one")
        if Rotate in kinds and Coder in kinds and kinds.index(Rotate) > kinds.index(Coder):
            raise UsageError(f"codec {self.name} rotates what is already coded; put ROT first")

    @property
    def name(self) -> str:
        return pipeline.name_of(self.steps)

    @property
    def rate(self) -> float:
        return prod(step.rate for step in self.steps)

    @property
    def exact(self) -> bool:
        return all(step.exact for step in self.steps)

    def size(self, schema: Schema) -> int:
        return pipeline.size_of(self.steps, schema)

    def estimate(self, schema: Schema) -> int:
        return self.size(schema)

    def encode(self, tensors: Mapping[str, Tensor], key: int) -> bytes:
        return pipeline.encode(self.steps, tensors, key)

    def decode(self, data: memoryview, schema: Schema) -> Tensors:
        return pipeline.decode(self.steps, data, schema)


def _kind(step: object) -> type[object]:
    """Which of the three kinds a step is: coder, selector or rotation."""
    for kind in (Coder, Selector, Rotate):
        if isinstance(step, kind):
            return kind
    raise UsageError(
        f"a chain is made of quantizers, masks and rotations, and {step!r} is none: use it by itself, or derive it "
        "from progfed.codec.step.Coder or progfed.codec.sparsify.Selector"
    )
