"""Several experiments on one start of Flower's simulation: `main` trains the ten extensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

import ten
from progfed.client.learner import Learner
from progfed.flower import simulated_nodes
from progfed.flower.grid import GridEngine, Patience
from progfed.flower.node import InFolder, clients_of, trained
from progfed.flower.wire import pack_hosted, pack_update, unpack_task
from progfed.runs.identity import identity
from progfed.runs.train import Setup, setup, train
from progfed.wire import message as wire


@cache
def learners(make: Any) -> Mapping[str, tuple[Any, Learner]]:
    """The set-up and the learner of each run, by its id; made once in a process."""
    return {run_id: (setup, Learner(*setup)) for run_id, setup in make({}).items()}


def client_app(make: Any, *, reads: Sequence[str] = (), memory: Path | None = None) -> ClientApp:
    """Like `progfed.flower.node.client_app`, for a `make` that gives the set-ups of several runs by their ids."""
    app = ClientApp()
    assert memory is not None

    @app.query("progfed")
    def ask(message: Message, context: Context) -> Message:
        data = next(iter(learners(make).values()))[0].data
        return Message(
            pack_hosted({client: data.sizes[client] for client in clients_of(context.node_config, data.clients)}),
            reply_to=message,
        )

    @app.train("progfed")
    def train(message: Message, context: Context) -> Message:
        task = unpack_task(message.content)
        run_id = wire._HEADER.unpack_from(task.message)[8].hex()
        update = trained(task, learners(make)[run_id][1], InFolder(memory / run_id))
        return Message(pack_update(update), reply_to=message)

    return app


def main(out: Path) -> None:
    """Train all ten extensions in one simulation, each into a folder of its name."""
    simulated_nodes.client_app = client_app  # type: ignore[assignment]
    patience = Patience(poll=0.01, start=300.0, answer=240.0, deadline=300.0)
    with simulated_nodes.simulated(setups, nodes=3, workers=2, memory=out / "memory") as engine:
        for name in ten.NAMES:
            fresh = GridEngine(engine._grid, patience)
            fresh.sizes(ten.experiment(name).make_data(out).clients)  # waits until the nodes are there
            list(train(ten.experiment(name), out / name, data=out, engine=partial(nullcontext, fresh)))


def setups(settings: Mapping[str, Any]) -> Mapping[str, Setup]:
    """The set-up of each extension by its run id."""
    return {identity(one): setup(one, Path()) for one in map(ten.experiment, ten.NAMES)}
