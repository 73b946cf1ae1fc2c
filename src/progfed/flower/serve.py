"""What runs next to the SuperLink: the server app. It hands the loop an engine over the grid of its run."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from progfed.flower.grid import LOG, GridEngine, Patience
from progfed.flower.supernode import hasten_content

Main = Callable[[GridEngine, Mapping[str, Any]], None]
"""Trains on an engine, given the settings of the run (`[tool.flwr.app.config]`, and `flwr run --run-config`)."""


def server_app(main: Main, *, deadline: float = math.inf) -> ServerApp:
    """A server app that calls `main`. Settings `deadline` and `start` (seconds) say how patient the engine is.

    A recipe's own `deadline` can shorten a round, and cannot lengthen it.
    """
    app = ServerApp()

    @app.main()
    def serve(grid: Grid, context: Context) -> None:
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
