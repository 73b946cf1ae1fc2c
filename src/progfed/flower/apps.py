"""An experiment as a Flower app: the same experiment, on other machines."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from progfed.costs import Costs
from progfed.data.own import OwnData
from progfed.errors import DataError, UsageError
from progfed.files import replace_file
from progfed.population import FederatedData
from progfed.runs.directory import Record
from progfed.runs.experiment import Experiment
from progfed.runs.train import Setup, setup, train
from progfed.wire.engine import Engine

try:
    from flwr.app import Context
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

    from progfed.flower.grid import LOG, GridEngine, Patience
    from progfed.flower.node import client_app
    from progfed.flower.simulated_nodes import simulated
    from progfed.flower.supernode import hasten_content, limit_content
    from progfed.flower.wire import LONGEST
except ImportError as missing:
    raise UsageError(f"Flower is not installed ({missing}): install progfed[flower]") from missing

NODES = 100
"""A simulation has at most this many virtual nodes; beyond it a node holds several clients."""
SIZES = "clients.json"
"""The file of a run in which the server keeps how many examples each client has, as the nodes told it."""
ENVELOPE = 2**16
"""Bytes that Flower's records around a message may have."""
HOLDERS = "nodes.json"
"""The file of a run in which the server keeps which node has held which client first."""

Main = Callable[[GridEngine, Mapping[str, Any]], None]
"""Trains on an engine, given the settings of the run (`[tool.flwr.app.config]`, and `flwr run --run-config`)."""


def client(experiment: Experiment) -> ClientApp:
    """The client app; see `progfed.flower.client`."""
    return client_app(partial(on_node, experiment))


def on_node(experiment: Experiment, settings: Mapping[str, Any]) -> Setup:
    """The model, data and recipe of an experiment, made on the node that trains with them."""
    return setup(experiment, Path(str(settings.get("data", "data"))))


def server(experiment: Experiment) -> ServerApp:
    """The server app; see `progfed.flower.server`."""
    return server_app(partial(serve, experiment), deadline=experiment.recipe.deadline)


def server_app(main: Main, *, deadline: float = math.inf) -> ServerApp:
    """A server app that calls `main`. Settings `deadline` and `start` (seconds) say how patient the engine is.

    A recipe's own `deadline` can shorten a round, and cannot lengthen it.
    """
    app = ServerApp()

    @app.main()
    def run(grid: Grid, context: Context) -> None:
        _speak()
        hasten_content()
        settings = context.run_config
        chosen = {name: float(str(settings[name])) for name in ("deadline", "start") if name in settings}
        main(GridEngine(grid, Patience(**chosen).within(deadline)), settings)

    return app


def _speak() -> None:
    """Let the engine's own log reach `flwr log`; the root's would carry a line per request, and slow the run down."""
    if not LOG.handlers:
        LOG.addHandler(logging.StreamHandler(sys.stdout))
    LOG.setLevel(logging.INFO)
    LOG.propagate = False


def serve(experiment: Experiment, engine: GridEngine, settings: Mapping[str, Any]) -> None:
    """Run an experiment with its clients on the nodes of a grid; this is what the server app calls."""
    out = Path(str(settings.get("out", "runs"))) / f"{experiment.run}-seed{experiment.recipe.seed}"
    data = Path(str(settings.get("data", "data")))
    sizes: Sequence[int] = ()
    model, recipe = experiment.make_model(), experiment.recipe
    longest = Costs(model, recipe.method).longest_update(recipe, range(1, model.stages + 1))  # whoever is how weak
    limit_content(max(longest, LONGEST) + ENVELOPE)
    engine.holders |= read_numbers(out / HOLDERS)
    if isinstance(experiment.data, OwnData):
        sizes = known_sizes(engine, out, data, experiment.data.clients)
        experiment = replace(experiment, data=experiment.data.knowing(sizes))
    engine.sizes(experiment.make_data(data).clients)
    for record in train(experiment, out, data=data, engine=partial(noting, engine, out, sizes), checkpoint_every=1):
        _write_numbers(out / HOLDERS, engine.holders)  # those of nodes that have come since
        LOG.info("%s", told(record, experiment.told(record)))
    LOG.info("complete: %s", out.absolute())


def told(record: Record, metrics: str) -> str:
    """A round as a line of the log; `rounds.jsonl` has all of it.

    >>> told({"round": 3, "stage": 2, "loss": 0.5, "clients": 4, "rejected": {"missing": 2}}, "81.25 %")
    'round 3, stage 2: loss 0.5000, 81.25 %, 4 clients, rejected: 2 missing'
    """
    metric = f" {metrics}," if metrics else ""
    rejected = ", ".join(f"{count} {reason}" for reason, count in sorted(record["rejected"].items()))
    line = f"round {record['round']}, stage {record['stage']}: loss {record['loss']:.4f}"
    line += f",{metric} {record['clients']} clients"
    return f"{line}, rejected: {rejected}" if rejected else line


def known_sizes(engine: GridEngine, out: Path, data: Path, clients: int) -> Sequence[int]:
    """How many examples each client has: read from the run's folder where it is continued, else asked of the nodes."""
    before = [out / SIZES]
    if (out / "experiment.json").exists():
        before.append(data / SIZES)  # runs of earlier versions kept it there
    for path in before:
        if path.exists():
            return read_sizes(path, clients)
    sizes = engine.sizes(clients, all_needed=True)
    LOG.info("%d clients with %d examples", len(sizes), sum(sizes.values()))
    return [sizes[client] for client in range(clients)]


def read_sizes(path: Path, clients: int) -> Sequence[int]:
    """The number of examples of each client, from the file that a run keeps."""
    told = read_numbers(path)
    if not set(range(clients)) <= told.keys() or min(told.values()) < 1:
        raise DataError(f"{path} does not tell the examples of {clients} clients: remove it to ask them again")
    return [told[client] for client in range(clients)]


@contextmanager
def noting(engine: GridEngine, out: Path, sizes: Sequence[int]) -> Iterator[GridEngine]:
    """The engine, once what the nodes said is in the run's folder: a continued run must not hear other numbers."""
    _write_numbers(out / SIZES, dict(enumerate(sizes)))
    _write_numbers(out / HOLDERS, engine.holders)
    yield engine


def read_numbers(path: Path) -> dict[int, int]:
    """A number for each client, from a file; empty where the file does not exist."""
    try:
        return {int(client): int(number) for client, number in json.loads(path.read_text()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} does not hold a number for each client ({error}): remove it to ask anew") from error


def _write_numbers(path: Path, numbers: Mapping[int, int]) -> None:
    """Write a number for each client, unless the file has them already."""
    if numbers and read_numbers(path) != numbers:
        replace_file(path, json.dumps({str(client): number for client, number in sorted(numbers.items())}).encode())


def simulation(
    experiment: Experiment, folder: Path, data: Path, workers: int
) -> Callable[[], AbstractContextManager[Engine]]:
    """Flower's simulation as an engine for `train`; see `progfed.flower.simulation`.

    Each virtual node holds a partition of the clients. What clients remember is kept in the run's folder, so that a run
    that was stopped continues with the same bits.
    """
    declared = experiment.data.clients if isinstance(experiment.data, FederatedData | OwnData) else experiment.clients
    nodes = min(declared or workers, NODES)
    make = partial(on_node_at, experiment, data.absolute())
    patience = Patience().within(experiment.recipe.deadline)
    return partial(
        simulated, make, nodes=nodes, workers=min(workers, nodes), memory=folder / "clients", patience=patience
    )


def on_node_at(experiment: Experiment, data: Path, settings: Mapping[str, Any]) -> Setup:
    """The model, data and recipe for a virtual node, whose data folder is the same as everybody's."""
    return setup(experiment, data)
