"""An experiment as a Flower app: the same experiment, on other machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from progfed.checkpoint import replace_file
from progfed.data.own import SIZES, OwnData
from progfed.errors import UsageError
from progfed.examples import FederatedData
from progfed.experiment import Experiment, parts, train
from progfed.protocol import Engine
from progfed.records import Record

try:
    from progfed.engines.flower import (
        LOG,
        ClientApp,
        GridEngine,
        Parts,
        Patience,
        ServerApp,
        client_app,
        server_app,
        simulated,
    )
except ImportError as missing:
    raise UsageError(f"Flower is not installed ({missing}): install progfed[flower]") from missing

NODES = 100
"""A simulation has at most this many virtual nodes; beyond it a node holds several clients."""


def client(experiment: Experiment) -> ClientApp:
    """The client app. A node's setting `data` is its folder of data, `clients` or `partition-id` says whom it holds."""
    return client_app(partial(on_node, experiment))


def on_node(experiment: Experiment, settings: Mapping[str, Any]) -> Parts:
    """What a node trains with, made on the node."""
    return parts(experiment, Path(str(settings.get("data", "data"))))


def server(experiment: Experiment) -> ServerApp:
    """The server app. Its settings: `out`, where the run goes, and `data`, the server's folder of data.

    Every round is committed before the next begins; a run that was interrupted is continued by the same `flwr run`.
    """
    return server_app(partial(serve, experiment), deadline=experiment.recipe.deadline)


def serve(experiment: Experiment, engine: GridEngine, settings: Mapping[str, Any]) -> None:
    """Train on an engine over the grid of a run."""
    out = Path(str(settings.get("out", "runs"))) / f"{experiment.run}-seed{experiment.recipe.seed}"
    data = Path(str(settings.get("data", "data")))
    if isinstance(experiment.data, OwnData):
        know_sizes(engine, data / SIZES, experiment.data.clients)
    engine.sizes(experiment.make_data(data).clients)
    for record in train(experiment, out, data=data, engine=lambda: nullcontext(engine), checkpoint_every=1):
        LOG.info("%s", told(record))
    LOG.info("complete: %s", out.absolute())


def told(record: Record) -> str:
    """A round in a line of the log; all of it is in `rounds.jsonl`.

    >>> told({"round": 3, "stage": 2, "loss": 0.5, "metric": 81.25, "clients": 4, "rejected": {"missing": 2}})
    'round 3, stage 2: loss 0.5000, 81.25 %, 4 clients, rejected: 2 missing'
    """
    metric = "" if record["metric"] is None else f" {record['metric']:.2f} %,"
    rejected = ", ".join(f"{count} {reason}" for reason, count in sorted(record["rejected"].items()))
    line = f"round {record['round']}, stage {record['stage']}: loss {record['loss']:.4f}"
    line += f",{metric} {record['clients']} clients"
    return f"{line}, rejected: {rejected}" if rejected else line


def know_sizes(engine: GridEngine, path: Path, clients: int) -> None:
    """Ask the nodes how many examples their clients have, once: a run that continues must not find other numbers."""
    if path.exists():
        return
    sizes = engine.sizes(clients, all_needed=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps({str(client): number for client, number in sizes.items()}).encode())
    LOG.info("%d clients with %d examples", len(sizes), sum(sizes.values()))


def simulation(
    experiment: Experiment, folder: Path, data: Path, workers: int
) -> Callable[[], AbstractContextManager[Engine]]:
    """Flower's simulation as an engine for `train`: clients are partitions of virtual nodes.

    What clients remember is kept in the run's folder, so that a run that was stopped continues with the same bits.
    """
    declared = experiment.data.clients if isinstance(experiment.data, FederatedData | OwnData) else experiment.clients
    nodes = min(declared or workers, NODES)
    make = partial(on_node_at, experiment, data.absolute())
    patience = Patience().within(experiment.recipe.deadline)
    return partial(
        simulated, make, nodes=nodes, workers=min(workers, nodes), memory=folder / "clients", patience=patience
    )


def on_node_at(experiment: Experiment, data: Path, settings: Mapping[str, Any]) -> Parts:
    """What a virtual node trains with: its data are in the folder of everybody."""
    return parts(experiment, data)
