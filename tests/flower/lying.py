"""Nodes whose replies never come, or are far too long, on a real SuperLink: a registered key is all they need."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random

from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supernode.fleet_http_connection import http_request_response

from progfed.flower.wire import pack_hosted, pack_update
from progfed.wire.engine import Update


@contextmanager
def lying(
    address: str, certificate: str, key: Path, holds: Mapping[int, int], *, endless: int = 0
) -> Iterator[list[str]]:
    """A node that says truly which clients it holds, if it holds some, and then only announces; yields what it was
    asked. With `endless` every other update is really sent, and has so many bytes."""
    private = load_ssh_private_key(key.read_bytes(), None)
    asked: list[str] = []
    said = (bytes(endless), Random(1).randbytes(endless))  # Flower sends equal pieces once, and names them again
    ended = threading.Event()

    def live() -> None:
        keys = (private, private.public_key())
        with http_request_response(address, False, Path(certificate).read_bytes(), keys) as node:  # type: ignore[arg-type]
            _, receive, send, _, _, _, push, _ = node
            while not ended.wait(0.1):
                found = receive()
                if found is None:
                    continue
                message = found[0]
                kind = message.metadata.message_type
                query, sends = kind.startswith("query"), endless and asked.count(kind) % 2
                content = (
                    pack_hosted(holds)
                    if query
                    else pack_update(Update(0, said[len(asked) // 2 % 2] if sends else b"x"))
                )
                reply = Message(content, reply_to=message)
                reply.metadata.__dict__["_message_id"] = reply.object_id
                wanted, session = send(reply, get_object_tree(reply), 0.0)
                if (query and holds) or sends:
                    for name, part in get_all_nested_objects(reply).items():
                        if name in wanted:
                            push(message.metadata.run_id, session, name, part.deflate())
                asked.append(kind)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        yield asked
    finally:
        ended.set()
        thread.join()
