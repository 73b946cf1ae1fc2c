"""A Flower grid in memory: nodes are function calls, and can misbehave in every way a real one can."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

Behaviour = Callable[[Message, Message], list[Message]]
"""What becomes of a node's reply, given the message and the reply: none, one or several replies."""


STUCK = 30.0
"""Seconds after which the grid gives up on content that never comes: longer than any test waits."""


class MemoryGrid:
    """Nodes that answer at once; every message and reply crosses as Flower's own serialized objects."""

    def __init__(self, app: ClientApp, settings: dict[int, dict[str, Any]]) -> None:
        self._app = app
        self.contexts = {node: context(node, config) for node, config in settings.items()}
        self.behaviour: dict[int, Behaviour] = {}
        self.offline: set[int] = set()
        self.mute: set[int] = set()
        self.stuck: set[int] = set()
        self.given_up = False
        self.says: dict[int, str] = {}
        self.refused: set[int] = set()
        self.refusing = False
        self.pushed: list[Message] = []
        self.replied: list[Message] = []
        self._ready: dict[str, list[Message]] = {}

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in reversed(list(self.contexts)) if node not in self.offline]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        keys = []
        for message in messages:
            key = f"message-{len(self.pushed)}"
            message.metadata.__dict__["_message_id"] = key
            self.pushed.append(message)
            if self.refusing and message.metadata.dst_node_id in self.refused:
                continue
            self._ready[key] = self._answers(message)
            keys.append(key)
        return keys

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = [reply for key in message_ids for reply in self._ready.pop(key, [])]
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
            if isinstance(reply, threading.Event):
                self.given_up = not reply.wait(STUCK)
        self.replied += replies
        return replies

    def deliver_late(self, key: str, reply: Message) -> None:
        self._ready[key] = [reply]

    def _answers(self, message: Message) -> list[Message]:
        node = message.metadata.dst_node_id
        if node in self.mute:
            return []
        try:
            reply = self._app(crossed(message), self.contexts[node])
        except Exception as error:
            reply = Message(Error(code=1, reason=str(error)), reply_to=message)
        if node in self.stuck:
            return [threading.Event()]  # type: ignore[list-item]
        if node in self.says and message.metadata.message_type.startswith("query"):
            said = RecordDict({"progfed.fields": ConfigRecord({"sizes": self.says[node]})})
            return [Message(said, reply_to=message)]
        after = self.behaviour.get(node, lambda message, reply: [reply])
        return after(message, reply) if message.metadata.message_type.startswith("train") else [reply]


def context(node: int, config: dict[str, Any]) -> Context:
    return Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})


def crossed(message: Message) -> Message:
    """The message as it is after its records went through Flower's serialization."""
    if message.has_content():
        message.content = RecordDict(
            {
                key: type(record).inflate(
                    record.deflate(), {child.object_id: child for child in record.children.values()}
                )
                if record.children is not None
                else type(record).inflate(record.deflate())
                for key, record in message.content.items()
            }
        )
    return message
