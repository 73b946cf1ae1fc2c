"""Experiments on Flower: the same training, with clients on other machines.

Flower is imported when one of these is called, so that the rest of progfed works without it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    from progfed.runs.experiment import Experiment
    from progfed.wire.engine import Engine

__all__ = ["client", "server", "simulation"]


def client(experiment: Experiment) -> ClientApp:
    """The client app of an experiment, for a node. A node's setting `data` is its folder of data, and `clients` or
    `partition-id` says which clients it holds."""
    from progfed.flower import apps

    return apps.client(experiment)


def server(experiment: Experiment) -> ServerApp:
    """The server app of an experiment. Its settings: `out`, where the run goes, and `data`, the server's data."""
    from progfed.flower import apps

    return apps.server(experiment)


def simulation(
    experiment: Experiment, folder: Path, data: Path, workers: int
) -> Callable[[], AbstractContextManager[Engine]]:
    """Flower's simulation of virtual nodes as an engine for `train`."""
    from progfed.flower import apps

    return apps.simulation(experiment, folder, data, workers)
