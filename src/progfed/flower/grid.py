"""The engine over a Flower grid: tasks go to the nodes that hold their clients, updates come back as they arrive.

Which node holds which client is never guessed from a position in a list: the nodes are asked, and a client stays with
the node that held it first. A client whose node is gone, fails, or misses the deadline gives no update, and the server
counts it as missing; what comes after the deadline is left where it is, and cannot disturb a later round. What cannot
be read is handed on to the server, which counts it too.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import httpx
from flwr.app import Message, RecordDict

from progfed.errors import MessageError, ProgfedError, TrainingError, UsageError, printable
from progfed.flower.supernode import bound_content
from progfed.flower.wire import pack_task, unpack_hosted, unpack_update
from progfed.wire.engine import ClientState, Task, Update

TRAIN, ASK = "train.progfed", "query.progfed"
SILENT = 10
"""A node that does not answer is left alone for this many times the time it had."""
GRACE = 5.0
"""Seconds beyond the deadline in which Flower still takes a reply: clocks differ."""
GLANCE = 0.2
"""Seconds for which a reply keeps the others waiting; its content may take longer, and is then waited for aside."""
MOST_SAID = 500
"""Characters of what a node says about its failure that are written into the log."""
LOG = logging.getLogger("progfed.flower")


class Nodes(Protocol):
    """The part of `flwr.serverapp.Grid` that the engine uses."""

    def get_node_ids(self) -> Iterable[int]: ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long the server waits, in seconds.

    Args:
        deadline: The time that the clients of a round have. A client whose node has died is given up earlier, as soon
            as Flower reports it, which takes a minute.
        start: The time until all clients must have been found at the start of a run.
        answer: The time that a node has to say which clients it holds.
        poll: The time between two looks for replies.
    """

    deadline: float = 600.0
    start: float = 120.0
    answer: float = 60.0
    poll: float = 0.1

    def __post_init__(self) -> None:
        if min(self.deadline, self.start, self.answer, self.poll) <= 0:
            raise UsageError(f"times must be positive: {self}")

    def within(self, deadline: float) -> Patience:
        """The same, with a deadline no later than that of a recipe."""
        return replace(self, deadline=min(self.deadline, deadline))


class GridEngine:
    """Trains the clients of a round on the nodes of a Flower federation, for one run.

    Nodes keep the states of their clients, so `client_states` stays empty.
    """

    def __init__(self, grid: Nodes, patience: Patience | None = None) -> None:
        self.client_states: dict[int, ClientState] = {}
        self._grid, self._patience = grid, patience or Patience()
        self.holders: dict[int, int] = {}  # client -> the node that held it first: no other node may offer it
        self._node: dict[int, int] = {}  # client -> its node, while that is there
        self._sizes: dict[int, int] = {}
        self._clients = math.inf
        self._ask_again: dict[int, float] = {}  # node -> when to ask it again which clients it holds
        self._asked: set[tuple[int, int]] = set()  # client and round
        self._end = 0.0

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Update]:
        self._look_for(task.client for task in tasks)
        here = [task for task in tasks if task.client in self._node]
        self._begin({(task.client, task.round) for task in here})
        # a task must not outlive its round by much: a node that comes back should not find the work of the past
        left = max(self._end - time.monotonic(), 0.0)
        messages = [Message(pack_task(task), self._node[task.client], TRAIN, ttl=left + GRACE) for task in here]
        sent = self._push(messages, [task.client for task in here])
        for key, reply in self._replies(sent, left):
            yield from self._opened(sent[key], reply)

    def _begin(self, asked: set[tuple[int, int]]) -> None:
        """Start the clock of a round, unless it runs: a client that asks for the whole model gets no extra time."""
        if not asked <= self._asked:
            self._asked, self._end = asked, time.monotonic() + self._patience.deadline

    def sizes(self, clients: int, *, all_needed: bool = False) -> dict[int, int]:
        """The number of examples of each client that some node holds.

        Args:
            clients: How many clients there should be; nodes are asked until all are found or the time to `start` is
                over.
            all_needed: Whether missing clients are an error.
        """
        self._clients, end = clients, time.monotonic() + self._patience.start
        while True:
            self._ask_nodes(self._patience.answer, range(clients))
            missing = [client for client in range(clients) if client not in self._sizes]
            if not missing or time.monotonic() > end:
                break
            time.sleep(self._patience.poll)
        if len(missing) == clients or (missing and all_needed):
            raise TrainingError(
                f"within {self._patience.start:.0f} s no node has offered client {missing[0]} ({len(missing)} of "
                f"{clients} are missing): are all SuperNodes connected (`flwr supernode list`), and have they "
                "`partition-id` and `num-partitions`, or `clients`, in their --node-config?"
            )
        if missing:
            LOG.warning("starting without %d clients that no node holds: %s", len(missing), missing[:10])
        return dict(sorted(self._sizes.items()))

    def _look_for(self, clients: Iterable[int]) -> None:
        """Find the nodes of these clients: ask new nodes, and forget nodes that are gone."""
        online = set(self._grid.get_node_ids())
        self._node = {client: node for client, node in self._node.items() if node in online}
        self._ask_again = {node: when for node, when in self._ask_again.items() if node in online}
        wanted = list(clients)
        if any(client not in self._node for client in wanted):
            # a node that says nothing must not take the time of those that would train
            self._ask_nodes(min(self._patience.answer, self._patience.deadline / 4), wanted)

    def _ask_nodes(self, seconds: float, wanted: Sequence[int]) -> None:
        """Ask nodes which clients they hold, until all wanted clients are found.

        Asked are nodes that are new, that failed a second ago, or that were silent for long.
        """
        now = time.monotonic()
        nodes = [node for node in self._grid.get_node_ids() if self._ask_again.get(node, now) <= now]
        self._ask_again |= dict.fromkeys(nodes, now + SILENT * seconds)
        sent = self._push([Message(RecordDict(), node, ASK, ttl=seconds + GRACE) for node in nodes], nodes)
        for key, reply in self._replies(dict(sent), seconds):
            self._hear(sent.pop(key), reply)
            if all(client in self._node for client in wanted):
                self._ask_again |= dict.fromkeys(sent.values(), now)  # whose answer was not waited for
                return

    def _hear(self, node: int, reply: Message | None) -> None:
        """Note which clients a node says it holds."""
        try:
            hosted = unpack_hosted(_content(reply))
        except MessageError as error:
            LOG.warning("node %d does not say which clients it holds: %s", node, error)
            self._ask_again[node] = time.monotonic() + 1.0
            return
        self._ask_again[node] = math.inf
        for client, examples in hosted.items():
            if client >= self._clients:
                continue
            if self.holders.setdefault(client, node) != node:
                LOG.warning(
                    "client %d is offered by node %d, and stays with node %d, which held it first",
                    client,
                    node,
                    self.holders[client],
                )
                continue
            self._node[client], self._sizes[client] = node, examples

    def _push(self, messages: list[Message], whose: list[int]) -> dict[str, int]:
        """Push messages; returns whose each message is, without those that Flower did not accept."""
        if not messages:
            return {}
        taken = set(self._grid.push_messages(messages))
        owned = zip((message.metadata.message_id for message in messages), whose, strict=True)
        return {key: one for key, one in owned if key in taken}

    def _replies(self, sent: Mapping[str, int], seconds: float) -> Iterator[tuple[str, Message | None]]:
        """Replies as they come, until every message has one or the time is over; later replies are left alone."""
        waiting, pulls, end = list(sent), dict[str, Pull](), time.monotonic() + seconds
        while waiting and time.monotonic() < end:
            for key in list(waiting):
                if key not in pulls:
                    bound_content(end - time.monotonic())  # or the process could not end before Flower gives up
                    pulls[key] = Pull(self._grid, key)
                    pulls[key].join(GLANCE)
                if not pulls[key].is_alive():
                    for reply in pulls.pop(key).replies():
                        yield key, reply
                        waiting = [other for other in waiting if other != key]
            time.sleep(self._patience.poll if waiting else 0)

    def _opened(self, client: int, reply: Message | None) -> Iterator[Update]:
        """The update in a reply, as that of the client that was asked.

        The message inside proves who sent it, so no node can speak for another.
        """
        if reply is not None and reply.has_error():
            LOG.warning("client %d failed: %s", client, printable((reply.error.reason or "")[:MOST_SAID]))
            return
        try:
            yield Update(client, unpack_update(_content(reply)).message)
        except MessageError as error:
            LOG.warning("client %d sent what is no update: %s", client, error)
            yield Update(client, b"")


class Pull(threading.Thread):
    """Pulls the replies to one message in a thread of its own.

    A reply whose content is announced and never comes delays no other, and one that cannot be read spoils no other.
    """

    def __init__(self, grid: Nodes, key: str) -> None:
        super().__init__(daemon=True)
        self._grid, self._key = grid, key
        self._found: Sequence[Message | None] = ()
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self._found = list(self._grid.pull_messages([self._key]))
        except Exception as error:
            self._error = error

    def replies(self) -> Sequence[Message | None]:
        """The replies pulled, None for one that cannot be read; raises where the grid itself is gone."""
        error = self._error
        if error is None:
            return self._found
        refused = isinstance(error, httpx.HTTPStatusError) and error.response.status_code not in (401, 403)
        if isinstance(error, OSError | httpx.HTTPError | ProgfedError) and not refused:
            raise error
        LOG.warning("a reply cannot be read: %s: %s", type(error).__name__, printable(str(error)[:MOST_SAID]))
        return [None]


def _content(reply: Message | None) -> RecordDict:
    if reply is None:
        raise MessageError("content", "a reply that Flower cannot read")
    if reply.has_error():
        raise MessageError("error", reply.error.reason or "no reason given")
    return reply.content
