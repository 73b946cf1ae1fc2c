"""Error feedback around any codec: what was lost in one message is added to the next.

The memory is explicit state that belongs to the caller: the client for the uplink, the server for the downlink.

It helps where a codec loses a bounded share of what it is given, so that the memory stays bounded:

- LQ-b: the memory's largest number shrinks by 2 / (2**b - 1) a message (2/3 for LQ-2), relative to its range;
  not for LQ-1, where that factor is 2;
- TOP-k and RAND-k: the squared memory shrinks by 1 - k/100;
- DQ-x: the squared memory is x**2 / 12 of the squared message, so it stays bounded up to x = 3;
- EDEN-1: it is 0.57 of it;
- fp16, bf16: by the rounding.

Not for SP-k, nor a chain with it: multiplying the kept numbers by 100/k overshoots, and unless k is above 50
the memory does not shrink (for SP-25 its square trebles). Use RAND-k there.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from progfed.codec.base import Codec, schema_of
from progfed.errors import UsageError
from progfed.tensors import Tensors, sub


def feedback(
    codec: Codec, tensors: Mapping[str, Tensor], memory: Mapping[str, Tensor], key: int
) -> tuple[bytes, Tensors]:
    """Encode `tensors + memory`, and return the bytes with what they lost: the memory for the next message.

    Names that are new start without memory; memory of names that are gone (at a growth) is dropped.
    """
    wanted = {name: _with(name, value.detach(), memory.get(name)) for name, value in tensors.items()}
    data = codec.encode(wanted, key)
    return data, sub(wanted, codec.decode(memoryview(data), schema_of(wanted)))


def _with(name: str, value: Tensor, lost: Tensor | None) -> Tensor:
    if lost is None:
        return value
    if lost.shape != value.shape:
        shapes = f"{tuple(lost.shape)} instead of {tuple(value.shape)}"
        raise UsageError(f"the error-feedback memory of {name} has shape {shapes}; start with an empty memory")
    return value + lost
