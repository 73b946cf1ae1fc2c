"""Flower's simulation in its own way: a ServerApp with FedAvg, a ClientApp, one processor for each client (Ray).

The benchmark puts this folder on PYTHONPATH, so that Ray's processes find `workloads`.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import flwr
import torch
from conversation import answer
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from workloads import WORKLOADS, clients, net

LOAD = WORKLOADS[sys.argv[1]] if sys.argv[1:] else WORKLOADS["W0"]
client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Local training; the data of all clients are made once in each of Ray's processes."""
    inputs, targets = clients(LOAD)[int(context.node_config["partition-id"])]
    model = net(LOAD).train()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=LOAD.lr, momentum=LOAD.momentum, weight_decay=LOAD.decay)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=LOAD.batch, shuffle=True)
    examples = steps = 0
    for _ in range(LOAD.epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            examples, steps = examples + len(labels), steps + 1
    metrics = {"num-examples": len(inputs), "examples": examples, "steps": steps}
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(content=RecordDict(content), reply_to=message)


class Counting(FedAvg):
    """FedAvg that remembers how many examples and steps the replies tell of."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        replies = list(replies)
        told = [reply.content["metrics"] for reply in replies]
        self.counted = {name: int(sum(metrics[name] for metrics in told)) for name in ("examples", "steps")}
        return super().aggregate_train(server_round, replies)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """One round of FedAvg for each line that comes in; one of few clients before, to start Ray's processes."""
    arrays = ArrayRecord(net(LOAD).state_dict())
    variant = f"Flower {flwr.__version__} simulation, 1 CPU a client"

    def one(fraction: float) -> dict[str, Any]:
        nonlocal arrays
        strategy = Counting(
            fraction_train=fraction, fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=LOAD.clients
        )
        began = time.perf_counter()
        arrays = strategy.start(grid, arrays, num_rounds=1).arrays
        return {"seconds": time.perf_counter() - began, **strategy.counted}

    one(4 / LOAD.clients)
    answer({"ready": variant})
    for _ in sys.stdin:
        answer({"variant": variant, **one(1.0)})


if __name__ == "__main__":
    resources: Any = {"init_args": {"num_cpus": 2}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=LOAD.clients, backend_config=resources)
