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
    """The client app of an experiment, which a node runs.

    A node's setting `data` is its folder of data; `clients` or `partition-id` says which clients it holds.

    Args:
        experiment: The experiment, the same as for `server`.
    """
    from progfed.flower import apps

    return apps.client(experiment)


def server(experiment: Experiment) -> ServerApp:
    """The server app of an experiment.

    Its setting `out` is where the run goes, and `data` the server's folder of data. Every round is committed before the
    next begins; a run that was interrupted is continued by the same `flwr run`.

    Args:
        experiment: The experiment, the same as for `client`.
    """
    from progfed.flower import apps

    return apps.server(experiment)


def simulation(
    experiment: Experiment, folder: Path, data: Path, workers: int
) -> Callable[[], AbstractContextManager[Engine]]:
    """Flower's simulation of virtual nodes, as an engine for `train`.

    Args:
        experiment: The experiment.
        folder: The run's folder.
        data: The folder of data.
        workers: The number of processes.

    Returns:
        A function that starts the engine, as a context manager.
    """
    from progfed.flower import apps

    return apps.simulation(experiment, folder, data, workers)
