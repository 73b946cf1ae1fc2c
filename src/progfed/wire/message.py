"""What crosses between the server and the clients: tasks out, updates back, both as real bytes in a checked envelope.

A message is a fixed header and a body made by a codec. Names and shapes do not travel: both sides know the schema of a
phase, and the header proves it with a hash. Everything is checked before anything is decoded, so a bad message costs
nothing but its rejection, and memory is bounded by what the schema allows.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from progfed.codec import LIMIT, Codec, Schema, numel, schema_of
from progfed.errors import MessageError
from progfed.tensors import Tensors, finite

VERSION = 1
DOWN, UP, CHANGE, ASK = range(4)
"""Kinds of messages: a whole model, an update, the change since the model a client holds, and a client that asks for a
whole model because it does not hold the one that a change starts from."""


_MAGIC = b"PGFD"
# magic, version, kind, stage, round, client, examples, loss, run, base, schema, codec, raw length, body length
_HEADER = struct.Struct("<4sHHIIQQd8s16s16s8sQQ")
_DIGEST = 32
OVERHEAD = _HEADER.size + _DIGEST
"""Bytes that the envelope adds to the body of every message."""


@dataclass(frozen=True)
class Envelope:
    """Who sends what for which round; `client`, `examples` and `loss` are an update's, `base` a change's.

    `base` is the digest of the model that a change starts from: both sides prove that they hold the same.
    """

    kind: int
    run_id: str
    round: int
    stage: int
    client: int = 0
    examples: int = 0
    loss: float = 0.0
    base: bytes = bytes(16)


def message_size(codec: Codec, schema: Schema) -> int:
    """The length of a message with these tensors, envelope included; a bound where the codec is not exact."""
    return OVERHEAD + codec.size(schema)


def message_estimate(codec: Codec, schema: Schema) -> int:
    """The length that a message with these tensors is expected to have; exact where the codec is."""
    return OVERHEAD + codec.estimate(schema)


def seal(envelope: Envelope, tensors: Mapping[str, Tensor], codec: Codec, key: int) -> bytes:
    """The message: header, digest of header and body, body."""
    return seal_body(envelope, schema_of(tensors), codec, codec.encode(tensors, key))


def seal_body(envelope: Envelope, schema: Schema, codec: Codec, body: bytes) -> bytes:
    """The message around a body that the codec made of tensors with this schema."""
    header = _header(envelope, schema, codec, len(body))
    return b"".join((header, _digest(header, body), body))


def kind_of(message: bytes) -> int | None:
    """The kind that a message says it has; None where it is no message."""
    return _HEADER.unpack_from(message)[2] if len(message) >= OVERHEAD else None


def unseal(data: bytes, expected: Envelope, schema: Schema, codec: Codec) -> tuple[Envelope, Tensors]:
    """Check a message against what is expected here and now, then decode it.

    `expected.examples` is the largest number of examples that this sender may claim (0: it sends none).
    Raises `MessageError` with the reason: the first of version, run, round, stage, schema, codec, length, digest, …
    """
    found, body = _checked(data, expected, schema, codec)
    if expected.examples and not 1 <= found.examples <= expected.examples:
        raise MessageError("examples", f"{found.examples} claimed, 1 to {expected.examples} possible")
    if not math.isfinite(found.loss):
        raise MessageError("not finite", f"the loss of client {found.client} is {found.loss}")
    if abs(found.loss) > LIMIT:
        raise MessageError(
            "loss", f"client {found.client} claims {found.loss:g}, and {LIMIT:g} is the largest possible"
        )
    tensors = codec.decode(body, schema)
    if not finite(tensors):
        raise MessageError("not finite", f"the tensors of client {found.client} hold NaN or infinite numbers")
    return found, tensors


def model_digest(tensors: Mapping[str, Tensor]) -> bytes:
    """16 bytes that name a model: its names, shapes and every bit of its values."""
    digest = hashlib.sha256(schema_hash(schema_of(tensors)))
    for name in sorted(tensors):
        digest.update(tensors[name].detach().contiguous().numpy().data)
    return digest.digest()[:16]


def schema_hash(schema: Schema) -> bytes:
    """16 bytes that name a schema."""
    return _hash_of(tuple(schema.items()))


@lru_cache(maxsize=64)  # every message of a phase asks for the same few
def _hash_of(schema: tuple[tuple[str, tuple[int, ...]], ...]) -> bytes:
    listed = json.dumps([[name, list(shape)] for name, shape in schema])
    return hashlib.sha256(listed.encode()).digest()[:16]


@lru_cache(maxsize=64)
def _codec_hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:8]


def _header(envelope: Envelope, schema: Schema, codec: Codec, body: int) -> bytes:
    return _HEADER.pack(
        _MAGIC,
        VERSION,
        envelope.kind,
        envelope.stage,
        envelope.round,
        envelope.client,
        envelope.examples,
        envelope.loss,
        bytes.fromhex(envelope.run_id),
        envelope.base,
        schema_hash(schema),
        _codec_hash(codec.name),
        4 * numel(schema),
        body,
    )


def _digest(header: bytes | memoryview, body: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(header)
    digest.update(body)
    return digest.digest()


def _checked(data: bytes, expected: Envelope, schema: Schema, codec: Codec) -> tuple[Envelope, memoryview]:
    view = memoryview(data)
    if len(view) < OVERHEAD:
        raise MessageError("length", f"{len(view)} bytes cannot hold an envelope of {OVERHEAD}")
    fields = _HEADER.unpack_from(view)
    wanted = _HEADER.unpack(_header(expected, schema, codec, 0))
    names = (
        "magic",
        "version",
        "kind",
        "stage",
        "round",
        "client",
        "",
        "",
        "run",
        "base",
        "schema",
        "codec",
        "raw length",
        "",
    )
    for name, found, want in zip(names, fields, wanted, strict=True):
        if name and found != want:
            raise MessageError(name, f"{_show(found)} instead of {_show(want)}")
    header, digest, body = view[: _HEADER.size], view[_HEADER.size : OVERHEAD], view[OVERHEAD:]
    limit = codec.size(schema)
    if fields[-1] != len(body) or len(body) > limit or (codec.exact and len(body) != limit):
        raise MessageError("length", f"a body of {len(body)} bytes, declared {fields[-1]}, where {limit} are expected")
    if _digest(header, body) != digest:
        raise MessageError("digest", "the content does not match its digest: it was damaged or altered")
    found = Envelope(fields[2], expected.run_id, fields[4], fields[3], fields[5], fields[6], fields[7], fields[9])
    return found, body


def _show(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value
