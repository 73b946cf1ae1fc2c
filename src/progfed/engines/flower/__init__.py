"""Clients on other machines, over Flower (https://flower.ai): the only importer of flwr.

`GridEngine` is `tasks -> updates` over a grid; `client_app` and `server_app` make a Flower app of an experiment;
`simulated` is Flower's own simulation. Loop, aggregation, messages and counting are the same as for every engine.
"""

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from progfed.engines.flower.grid import LOG, GridEngine, Patience
from progfed.engines.flower.node import Parts, client_app, clients_of
from progfed.engines.flower.serve import server_app
from progfed.engines.flower.simulation import simulated

__all__ = [
    "LOG",
    "ClientApp",
    "GridEngine",
    "Parts",
    "Patience",
    "ServerApp",
    "client_app",
    "clients_of",
    "server_app",
    "simulated",
]
