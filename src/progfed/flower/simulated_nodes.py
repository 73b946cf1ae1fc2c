"""Flower's own simulation runtime as an engine: virtual nodes in Ray actors on this machine.

The runtime wants to own the main program, and hands its grid to a server app. Here it runs in a thread, whose server
app does nothing but pass the grid on and wait: the loop, its records and Ctrl-C stay where they are for every engine.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

from flwr.app import Message

from progfed.errors import TrainingError, UsageError
from progfed.flower.grid import GridEngine, Nodes, Patience
from progfed.flower.node import Make, client_app
from progfed.runs.train import Setup


@dataclass(frozen=True)
class _Stored:
    """`make` stored in a file: an actor reads it once, instead of being sent model and data with every message."""

    path: str

    def __call__(self, settings: Mapping[str, Any]) -> Setup:
        from ray import cloudpickle

        make: Make = cloudpickle.loads(Path(self.path).read_bytes())
        return make(settings)


class Watched:
    """The grid of a simulation; it raises an error once the simulation has ended, where Flower's would be silent."""

    def __init__(self, grid: Nodes, failures: list[BaseException]) -> None:
        self._grid, self._failures = grid, failures

    def get_node_ids(self) -> Iterable[int]:
        return self._running().get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._running().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._running().pull_messages(message_ids)

    def _running(self) -> Nodes:
        if self._failures:
            error = self._failures[0]
            cause = error.__cause__ or error
            raise TrainingError(f"Flower's simulation has ended: {type(cause).__name__}: {cause}") from error
        return self._grid


@contextmanager
def simulated(
    make: Make, *, nodes: int, workers: int, memory: Path | None = None, patience: Patience | None = None
) -> Iterator[GridEngine]:
    """Start an engine on virtual nodes; all its processes have ended when the block is left.

    Args:
        make: Makes the model, data and recipe from a node's settings.
        nodes: The number of virtual nodes.
        workers: The number of processes.
        memory: The folder for what clients remember.
        patience: How long the engine waits.
    """
    _quiet()
    try:
        from flwr.simulation import run_simulation
        from ray import cloudpickle
    except ImportError as error:
        raise UsageError(f"the simulation needs Ray ({error}): install progfed[simulation]") from error
    grids: Queue[Any] = Queue()
    failures: list[BaseException] = []
    done = threading.Event()
    with tempfile.TemporaryDirectory(prefix="progfed-") as folder:
        stored = Path(folder) / "make"
        stored.write_bytes(cloudpickle.dumps(make))  # type: ignore[no-untyped-call]
        ray: Any = {"num_cpus": workers, "log_to_driver": False}
        resources: Any = {"init_args": ray, "client_resources": {"num_cpus": 1}}
        app = client_app(_Stored(str(stored)), reads=(), memory=memory.absolute() if memory else None)

        def simulate() -> None:
            try:
                run_simulation(_passing(grids, done), app, nodes, backend_config=resources)
            except BaseException as error:
                failures.append(error)
                grids.put(None)

        thread = threading.Thread(target=simulate, name="flower-simulation")
        thread.start()
        try:
            yield GridEngine(Watched(grids.get(), failures), patience)
        finally:
            done.set()
            thread.join()


def _passing(grids: Queue[Any], done: threading.Event) -> Any:
    """A server app that passes its grid on and waits until it is no longer needed."""
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        grids.put(grid)
        done.wait()

    return app


def _quiet() -> None:
    """Switch off telemetry, listening beyond this machine, and chatter; errors are still shown."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # or Ray listens on all addresses of the machine: without clusters it has no need to
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    # a filter, since Ray sets the level of its loggers itself
    logging.getLogger("ray._private.worker").addFilter(lambda record: record.levelno >= logging.ERROR)
