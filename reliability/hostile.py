"""Hostile messages: bytes that are damaged, that lie, or that are well made and of the wrong place, size or value."""

from __future__ import annotations

import math
import resource
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import torch

from progfed import rng
from progfed.codec import Codec, codec, schema_of
from progfed.errors import MessageError
from progfed.tensors import Tensors
from progfed.wire import message
from progfed.wire.message import UP, Envelope, seal, seal_body, unseal
from reliability import expect

RUN = "0123456789abcdef"
SENT = Envelope(UP, RUN, round=7, stage=2, client=5, examples=12, loss=0.25)
EXPECTED = replace(SENT, examples=100, loss=0.0)
CODECS = (
    *("float", "fp16", "bf16", "LQ-8", "LQ-2", "LQ-4@8", "TOP-10", "SP-25", "RAND-25", "LQ-8+SP-25", "ROT+LQ-4"),
    *("DQ-1.5", "DQ-0.3", "EDEN-1"),
)
"""One of every kind of codec: hostile messages come for all of them in turn."""
ALLOWED_GROWTH = 64 * 2**20
"""Bytes by which all the hostile messages together may raise the memory of the process."""


@dataclass(frozen=True)
class Target:
    """What an attacker has: a valid message of its own, and how the server will read it."""

    codec: Codec
    tensors: Tensors
    message: bytes

    @property
    def body(self) -> bytes:
        return self.message[message.OVERHEAD :]

    def sealed(self, body: bytes, envelope: Envelope = SENT) -> bytes:
        """A message with a correct digest around any body: whoever knows the format can make one."""
        return seal_body(envelope, schema_of(self.tensors), self.codec, body)

    def opened(self, message: bytes) -> Tensors:
        """What the server makes of a message."""
        return unseal(message, EXPECTED, schema_of(self.tensors), self.codec)[1]


def target(name: str) -> Target:
    """The target for one codec."""
    draw = rng.generator(0, "hostile")
    tensors = {"E2.w": torch.randn(9, 5, generator=draw), "E2.b": torch.randn((), generator=draw)}
    tensors |= {"G2.w": torch.randn(3, 4, 2, generator=draw), "G2.none": torch.zeros(0, 4)}
    return Target(codec(name), tensors, seal(SENT, tensors, codec(name), 1))


def flipped(target: Target, draw: Random) -> bytes:
    """Some bytes changed."""
    changed = bytearray(target.message)
    for _ in range(draw.randint(1, 4)):
        changed[draw.randrange(len(changed))] ^= draw.randint(1, 255)
    return bytes(changed)


def cut(target: Target, draw: Random) -> bytes:
    """The end missing."""
    return target.message[: draw.randrange(len(target.message))]


def extended(target: Target, draw: Random) -> bytes:
    """Something after the end, with and without a length that says so."""
    more = draw.randbytes(draw.randint(1, 40))
    return target.message + more if draw.random() < 0.5 else target.sealed(target.body + more)


def spliced(target: Target, draw: Random) -> bytes:
    """A piece of the message copied over another."""
    at, to, size = (draw.randrange(len(target.message)) for _ in range(3))
    piece = target.message[at : at + size]
    return (target.message[:to] + piece + target.message[to + len(piece) :])[: len(target.message)]


def elsewhere(target: Target, draw: Random) -> bytes:
    """Well made, for another round, stage, run, client, kind or base."""
    other: list[Envelope] = [
        replace(SENT, round=draw.choice((0, 6, 8, 2**32 - 1))),
        replace(SENT, stage=draw.choice((0, 1, 3, 2**32 - 1))),
        replace(SENT, run_id=draw.randbytes(8).hex()),
        replace(SENT, client=draw.choice((0, 4, 6, 2**64 - 1))),
        replace(SENT, kind=draw.choice((0, 2, 3, 65535))),
        replace(SENT, base=draw.randbytes(16)),
    ]
    return target.sealed(target.body, draw.choice(other))


def miscounted(target: Target, draw: Random) -> bytes:
    """An impossible number of examples, or a loss that is no number."""
    examples = draw.choice((0, 101, 2**31, 2**63, 2**64 - 1))
    loss = draw.choice((math.nan, math.inf, -math.inf))
    return target.sealed(target.body, replace(SENT, **draw.choice(({"examples": examples}, {"loss": loss}))))


def misshapen(target: Target, draw: Random) -> bytes:
    """Tensors of other shapes or names, well encoded."""
    tensors = dict(target.tensors)
    name = draw.choice(("E2.w", "G2.w"))
    change = draw.randrange(4)
    if change == 0:
        tensors[name] = tensors[name].flatten()
    elif change == 1:
        tensors[name] = torch.zeros(draw.randint(1, 300))
    elif change == 2:
        tensors[f"E9.{draw.randrange(99)}"] = tensors.pop(name)
    else:
        del tensors[name]
    return seal(SENT, tensors, target.codec, draw.getrandbits(30))


def not_numbers(target: Target, draw: Random) -> bytes:
    """NaN or infinity among the floats."""
    body = bytearray(target.body if target.codec.name == "float" else bytes(4 * 8))
    at = 4 * draw.randrange(len(body) // 4)
    body[at : at + 4] = struct.pack("<f", draw.choice((math.nan, math.inf, -math.inf)))
    floats = Target(codec("float"), target.tensors, target.message)
    return floats.sealed(bytes(body))


def bombs(target: Target, draw: Random) -> bytes:
    """A small message that says it is huge, or a body full of the largest counts."""
    lying = bytearray(target.message)
    fields = message._HEADER
    at = fields.size - 8 * draw.choice((1, 2))
    lying[at : at + 8] = struct.pack("<Q", draw.choice((2**63, 2**40, 2**33)))
    header = bytes(lying[: fields.size])
    body = target.body
    return header + message._digest(header, body) + body


def garbage(target: Target, draw: Random) -> bytes:
    """Any bytes at all."""
    return draw.randbytes(draw.randrange(2 * len(target.message)))


def forged(target: Target, draw: Random) -> bytes:
    """A correct envelope and digest around a body of any bytes, or a body with some changed."""
    if draw.random() < 0.5:
        return target.sealed(draw.randbytes(len(target.body)))
    body = bytearray(target.body)
    for _ in range(draw.randint(1, 6)):
        body[draw.randrange(len(body))] = draw.choice((0, 255, draw.randrange(256)))
    return target.sealed(bytes(body))


REJECTED: tuple[Callable[[Target, Random], bytes], ...] = (
    flipped,
    cut,
    extended,
    spliced,
    elsewhere,
    miscounted,
    misshapen,
    not_numbers,
    bombs,
    garbage,
)


def hostile_messages(count: int, *, seed: int = 0, until: float = float("inf")) -> int:
    """Open so many hostile messages, of all kinds and for all codecs in turn; how many were opened.

    All are rejected with a reason. Only a forged body may be accepted, since any finite numbers are: then it has to
    have the names and shapes of the schema and nothing but finite numbers.
    """
    targets, draw = [target(name) for name in CODECS], Random(rng.number(seed, "hostile"))
    kinds = (*REJECTED, forged)
    before = peak()
    for number in range(count):
        if time.monotonic() > until:
            return number
        aim, kind = targets[number % len(targets)], kinds[number // len(targets) % len(kinds)]
        message = kind(aim, draw)
        if message != aim.message:
            _open(aim, message, f"message {number} of seed {seed} ({kind.__name__}, {aim.codec.name})", kind is forged)
    expect(peak() - before <= ALLOWED_GROWTH, f"{count} messages raised the memory by {peak() - before} bytes")
    return count


def _open(target: Target, message: bytes, where: str, may_open: bool) -> None:
    try:
        found = target.opened(message)
    except MessageError as error:
        expect(bool(error.reason), f"{where} was rejected without a reason")
        return
    except Exception as error:
        expect(False, f"{where} broke the decoder: {type(error).__name__}: {error}")
        raise
    expect(may_open, f"{where} was accepted")
    expect(schema_of(found) == schema_of(target.tensors), f"{where} was opened to other names or shapes")
    expect(all(bool(torch.isfinite(value).all()) for value in found.values()), f"{where} holds what is no number")


def peak() -> int:
    """The largest memory that this process has had, in bytes."""
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else 1024 * found
