"""Half precision: the simplest compression, two bytes a number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from progfed.codec.base import check_finite
from progfed.codec.bits import Array
from progfed.codec.step import DECODED_LIMIT, Coder, Flow
from progfed.errors import MessageError, UsageError

_LARGEST_FLOAT16 = 65504.0


@dataclass(frozen=True)
class Half(Coder):
    """float16 (`fp16`) or bfloat16 (`bf16`), rounded to nearest: biased, but by little.

    - fp16: error of one number <= 2**-11 |x| + 2**-25; numbers beyond 65504 are refused (bf16 holds them).
    - bf16: error of one number <= 2**-8 |x| + 2**-134.
    """

    kind: str
    bits = 16

    def __post_init__(self) -> None:
        if self.kind not in ("fp16", "bf16"):
            raise UsageError(f"no half precision is called {self.kind!r}; choose fp16 or bf16")

    @property
    def name(self) -> str:
        return self.kind

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float16 if self.kind == "fp16" else torch.bfloat16

    def forward(self, flow: Flow, key: int) -> tuple[bytes, Flow]:
        codes = []
        for array in flow.arrays:
            if self.kind == "fp16" and len(array) and max(-array.min(), array.max()) > _LARGEST_FLOAT16:
                raise MessageError("range", f"fp16 cannot hold numbers beyond {_LARGEST_FLOAT16:g}; use bf16")
            half = torch.from_numpy(array).to(self._dtype)
            codes.append(half.view(torch.int16).numpy().view(np.uint16).astype("<u2", copy=False))
        return b"", Flow(codes, self)

    def read(self, codes: Array, side: memoryview, ranges: Array) -> Array:
        halves = torch.from_numpy(codes.astype(np.uint16).view(np.int16)).view(self._dtype)
        values: Array = halves.to(torch.float32).numpy()
        check_finite(values, DECODED_LIMIT, of="message")
        return values
