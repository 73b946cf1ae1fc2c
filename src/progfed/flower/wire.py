"""Messages between a Flower server app and its nodes: one opaque array each, and a few small fields.

A message of the protocol stays the bytes that it is. As one array it is three objects to Flower, where separate tensors
would be a hundred; and only the server's check of replies judges what is inside.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from progfed.errors import MessageError
from progfed.schedule import Phase
from progfed.wire.engine import Task, Update

KIND = "progfed.v1"
"""How Flower names the arrays of this protocol: no library of tensors will take them for its own."""
MOST, LONGEST = 10**9, 10**7
"""The most examples that a client may have, and the most characters of what a node says about its clients."""
_BYTES, _FIELDS, _KEY = "progfed.bytes", "progfed.fields", "message"


def pack_task(task: Task) -> RecordDict:
    """A task as Flower's records; lists are written as text, since Flower cannot measure an empty one."""
    phase = task.phase
    fields: dict[str, Any] = {
        "client": task.client,
        "round": task.round,
        "lr": float(task.lr),
        "stage": phase.stage,
        "rounds": phase.rounds,
        "trains": json.dumps(phase.trains),
        "heads": json.dumps(phase.heads),
        "warmup": int(phase.warmup),
        "at_once": phase.at_once,
        "bits": json.dumps(task.bits),
    }
    return _pack(fields, task.message)


def unpack_task(content: RecordDict) -> Task:
    """The task that `pack_task` packed."""
    fields, message = _unpack(content)
    try:
        phase = Phase(
            stage=_whole(fields["stage"]),
            rounds=_whole(fields["rounds"]),
            trains=tuple(json.loads(fields["trains"])),
            heads=tuple(json.loads(fields["heads"])),
            warmup=bool(_whole(fields["warmup"])),
            at_once=_whole(fields["at_once"]),
        )
        bits = json.loads(fields["bits"])
        return Task(
            _whole(fields["client"]),
            _whole(fields["round"]),
            phase,
            float(fields["lr"]),
            message,
            None if bits is None else (float(bits[0]), float(bits[1])),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise MessageError("fields", f"a task that cannot be read: {type(error).__name__}: {error}") from error


def pack_update(update: Update) -> RecordDict:
    """An update as Flower's records."""
    return _pack({"client": update.client}, update.message)


def unpack_update(content: RecordDict) -> Update:
    """The update that `pack_update` packed."""
    fields, message = _unpack(content)
    try:
        return Update(_whole(fields["client"]), message)
    except (KeyError, TypeError) as error:
        raise MessageError("fields", f"an update without its client: {error}") from error


def pack_hosted(sizes: Mapping[int, int]) -> RecordDict:
    """What a node says about itself, as records: its clients and how many examples each has."""
    return RecordDict({_FIELDS: ConfigRecord({"sizes": json.dumps({str(client): n for client, n in sizes.items()})})})


def unpack_hosted(content: RecordDict) -> dict[int, int]:
    """What `pack_hosted` packed, if it is possible: clients from 0 on, with 1 to `MOST` examples each."""
    try:
        text = _fields(content)["sizes"]
        if len(text) > LONGEST:
            raise ValueError(f"{len(text)} characters")
        listed = {int(client): _whole(number) for client, number in json.loads(text).items()}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise MessageError("fields", f"a list of clients that cannot be read: {error}") from error
    for client, number in listed.items():
        if client < 0 or not 1 <= number <= MOST:
            raise MessageError("fields", f"client {client} with {number} examples: there are 1 to {MOST}")
    return listed


def opaque(data: bytes) -> Array:
    """Bytes as an array that Flower carries without interpreting it."""
    return Array("uint8", (len(data),), KIND, data)


def _pack(fields: dict[str, Any], message: bytes) -> RecordDict:
    return RecordDict({_BYTES: ArrayRecord({_KEY: opaque(message)}), _FIELDS: ConfigRecord(fields)})


def _unpack(content: RecordDict) -> tuple[dict[str, Any], bytes]:
    record = content.array_records.get(_BYTES)
    array = record.get(_KEY) if record is not None else None
    if array is None or array.stype != KIND:
        raise MessageError("content", f"no array of kind {KIND} in the message")
    return _fields(content), array.data


def _fields(content: RecordDict) -> dict[str, Any]:
    fields = content.config_records.get(_FIELDS)
    if fields is None:
        raise MessageError("content", "no fields in the message")
    return dict(fields)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    return value
