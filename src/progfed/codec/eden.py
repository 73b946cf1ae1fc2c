"""One bit a number in a length that is known beforehand: the signs of a rotated tensor, and one scale for each block.

After DRIVE and EDEN (Vargaftik et al. 2021, 2022). A random rotation makes any block look like Gaussian noise, of which
the sign tells most. With y the rotated block, its scale is `||y||^2 / ||y||_1`: larger than the scale with the least
error in one message, but with it the mean of many messages comes close to the mean of what was sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from progfed.codec.base import Schema, counts, numel, schema_of, shaped
from progfed.codec.bits import Array, pack, packed_size, unpack
from progfed.codec.dither import smallest
from progfed.codec.quantize import Quantize
from progfed.codec.rotate import Rotate, block_starts
from progfed.codec.step import DECODED_LIMIT, Flow, Layout, flat
from progfed.errors import MessageError
from progfed.tensors import Tensors

_FEW = Quantize(8)
_ROTATE = Rotate()


@dataclass(frozen=True)
class Eden:
    """The signs of all numbers after a rotation, with a scale for each block; small tensors (see `smallest`) as LQ-8.

    The squared error of a block is close to (pi / 2 - 1) ||x||^2. The mean over keys is the number itself up to a
    relative error of about a third of the share that its square has in the sum of squares of its block: next to
    nothing, except where a few numbers are nearly all of a block.
    """

    name: str = "EDEN-1"
    rate: float = 1 / 32
    exact: bool = True

    def size(self, schema: Schema) -> int:
        return _Cuts(schema).ends[-1]

    def estimate(self, schema: Schema) -> int:
        return self.size(schema)

    def encode(self, tensors: Mapping[str, Tensor], key: int) -> bytes:
        cuts = _Cuts(schema_of(tensors))
        side, flow = _ROTATE.forward(Flow([flat(name, tensors[name]) for name in cuts.many]), key)
        values = np.concatenate(flow.arrays) if flow.arrays else np.empty(0, dtype=np.float32)
        scales = [_scale(values[start:end]) for start, end in pairwise(cuts.segments)]
        signs = pack((values >= 0).view(np.uint8), 1)
        small = _FEW.encode({name: tensors[name] for name in cuts.few}, key)
        return b"".join((small, side, np.array(scales, dtype="<f4").data, signs.data))

    def decode(self, data: memoryview, schema: Schema) -> Tensors:
        cuts = _Cuts(schema)
        if len(data) != cuts.ends[-1]:
            raise MessageError("length", f"{len(data)} bytes instead of {cuts.ends[-1]} for {self.name}")
        small, side, scales, signs = (data[start:end] for start, end in pairwise((0, *cuts.ends)))
        values = _signed(scales, np.frombuffer(signs, dtype=np.uint8), cuts.segments)
        layout = Layout(np.array(counts(cuts.many), dtype=np.int64))
        _ROTATE.back(values, side, (layout, layout))
        found = _FEW.decode(small, cuts.few) | shaped(torch.from_numpy(values), cuts.many)
        return {name: found[name] for name in schema}


class _Cuts:
    """How a message is divided: small tensors and others, segments that share a scale, and the parts of the bytes.

    A segment is a block that was rotated together. The last block of a tensor may overlap the one before, whose segment
    then ends where the last block begins.
    """

    def __init__(self, schema: Schema) -> None:
        small = set(smallest(counts(schema)))
        self.few = {name: shape for place, (name, shape) in enumerate(schema.items()) if place in small}
        self.many = {name: shape for name, shape in schema.items() if name not in self.few}
        self.segments = [0]
        for count in counts(self.many):
            self.segments[-1:] = [self.segments[-1] + start for start in (*block_starts(count), count)]
        sizes = (
            _FEW.size(self.few),
            _ROTATE.side_size(len(self.many), numel(self.many)),
            4 * (len(self.segments) - 1),
            packed_size(numel(self.many), 1),
        )
        self.ends = list(accumulate(sizes))


def _scale(values: Array) -> float:
    wide = values.astype(np.float64)
    total = float(np.abs(wide).sum())
    return float(np.square(wide).sum()) / total if total else 0.0


def _signed(scales: memoryview, signs: Array, segments: list[int]) -> Array:
    """Plus or minus the scale of its segment for each number."""
    scale = np.frombuffer(scales, dtype="<f4")
    if not ((scale >= 0) & (scale <= DECODED_LIMIT)).all():
        raise MessageError("range", "EDEN-1 with a scale that is negative, too large or not a number")
    values = unpack(signs, segments[-1], 1).astype(np.float32)
    values *= 2
    values -= 1
    for place, (start, end) in enumerate(pairwise(segments)):
        values[start:end] *= scale[place]
    return values
