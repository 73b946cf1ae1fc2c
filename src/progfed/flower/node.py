"""The client app, which runs on a node: it trains the clients that the node holds, and keeps what they remember.

The model, the data and the recipe are made once in a process and kept for later rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from progfed.client.kernels import one_thread
from progfed.client.learner import Learner
from progfed.errors import DataError, MessageError, UsageError
from progfed.files import replace_file
from progfed.flower.wire import opaque, pack_hosted, pack_update, unpack_task
from progfed.runs.train import Setup
from progfed.wire.engine import ClientState, Task, Update
from progfed.wire.state import pack, unpack

Make = Callable[[Mapping[str, Any]], Setup]
"""Makes what a node trains with, given the node's settings (Flower's `--node-config`)."""
Versions = dict[int, bytes]
"""Packed states of one client by the round they were made in."""

KEEP = 2
"""Rounds whose states are kept: a server that was killed goes on one round back, and must find the same states."""


def client_app(make: Make, *, reads: Sequence[str] = ("data",), memory: Path | None = None) -> ClientApp:
    """A client app.

    What clients remember is kept in Flower's own state of the node, which lives as long as its SuperNode and one run;
    with a folder (`memory`, or `memory=…` in the node's settings) it is kept on disk, and survives both.

    Args:
        make: Makes the model, data and recipe from the node's settings.
        reads: The names of the settings that it is given.
        memory: The folder for what clients remember.
    """
    app = ClientApp()

    @app.query("progfed")
    def ask(message: Message, context: Context) -> Message:
        data = _made(make, _settings(context, reads))[0].data
        sizes = {client: data.sizes[client] for client in clients_of(context.node_config, data.clients)}
        return Message(pack_hosted(sizes), reply_to=message)

    @app.train("progfed")
    def train(message: Message, context: Context) -> Message:
        task = unpack_task(message.content)
        setup, learner = _made(make, _settings(context, reads))
        if task.client not in clients_of(context.node_config, setup.data.clients):
            raise UsageError(f"client {task.client} is not on this node: its settings are {dict(context.node_config)}")
        folder = context.node_config.get("memory", memory)
        place = InFolder(Path(str(folder)) / setup.run_id) if folder else InContext(context)
        return Message(pack_update(trained(task, learner, place)), reply_to=message)

    return app


def clients_of(settings: Mapping[str, Any], clients: int) -> list[int]:
    """The clients that a node holds: those in its setting `clients`, or its share of the partitions.

    Client i is on partition i modulo the number of partitions.

    >>> clients_of({"partition-id": 1, "num-partitions": 3}, clients=8)
    [1, 4, 7]
    >>> clients_of({"clients": "5, 2"}, clients=8)
    [2, 5]
    """
    try:
        if "clients" in settings:
            held = sorted({int(client) for client in str(settings["clients"]).split(",")})
        else:
            held = list(range(int(settings["partition-id"]), clients, int(settings["num-partitions"])))
    except (KeyError, ValueError) as error:
        raise UsageError(
            'a node needs `clients="0,3"`, or `partition-id` and `num-partitions`, in its --node-config, '
            f"not {dict(settings)}"
        ) from error
    if not held or held[0] < 0 or held[-1] >= clients:
        raise UsageError(f"a node with {dict(settings)} holds none of the {clients} clients")
    return held


class InContext:
    """The states of clients in Flower's own state of a node."""

    def __init__(self, context: Context) -> None:
        self._records = context.state.array_records

    def read(self, client: int) -> Versions:
        record = self._records.get(f"progfed.memory.{client}")
        return {int(key): array.data for key, array in record.items()} if record is not None else {}

    def write(self, client: int, versions: Versions) -> None:
        arrays = {str(number): opaque(data) for number, data in versions.items()}
        self._records[f"progfed.memory.{client}"] = ArrayRecord(arrays)


class InFolder:
    """The states of clients in a folder, one file per client and round, each written whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, client: int) -> Versions:
        found = sorted(self._path.glob(f"client-{client}.round-*.memory"))
        return {int(path.name.split(".")[1].removeprefix("round-")): path.read_bytes() for path in found}

    def write(self, client: int, versions: Versions) -> None:
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            known = self.read(client)
            for number, data in versions.items():
                if known.get(number) != data:
                    replace_file(self._name(client, number), data)
            for number in known.keys() - versions.keys():
                self._name(client, number).unlink()
        except OSError as error:
            raise DataError(f"the memory of client {client} cannot be kept in {self._path}: {error}") from error

    def _name(self, client: int, number: int) -> Path:
        return self._path / f"client-{client}.round-{number}.memory"


def trained(task: Task, learner: Learner, place: InContext | InFolder) -> Update:
    """Train a task from what the client remembered before this round, so that a repeated round gives the same bits."""
    versions = {number: data for number, data in place.read(task.client).items() if number < task.round}
    with one_thread():
        update, state = learner(task, _latest(versions))
    if state:
        newest = sorted(versions)[-(KEEP - 1) :]
        place.write(task.client, {n: versions[n] for n in newest} | {task.round: pack(state)})
    return update


def _latest(versions: Versions) -> ClientState:
    """The newest state. A damaged one counts as none: the client then asks for the whole model."""
    try:
        return unpack(versions[max(versions)]) if versions else {}
    except MessageError:
        return {}


def _settings(context: Context, names: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, context.node_config[name]) for name in names if name in context.node_config)


@cache
def _made(make: Make, settings: tuple[tuple[str, Any], ...]) -> tuple[Setup, Learner]:
    """The model, data, recipe and learner, made once in a process, so that data are not read again in every round."""
    setup = make(dict(settings))
    return setup, Learner(*setup)


def forget() -> None:
    """Forget what was made; the next task makes it again."""
    _made.cache_clear()
