"""progfed's own round, as a process that the benchmark tells when to run one (see `conversation.py`)."""

from __future__ import annotations

import argparse
import mmap
import struct
import time
from collections.abc import Callable
from typing import Any

import torch
from conversation import converse
from torch import Tensor, nn
from workloads import WORKLOADS, Workload, clients

from progfed.blocks import Progressive
from progfed.client.visit import ClientVisit
from progfed.costs.phase import phase_cost
from progfed.engines.local import LocalEngine
from progfed.models import convnet_cifar, convnet_mnist, resnet18
from progfed.population import Examples, FederatedData, from_clients
from progfed.recipe.rate import Constant
from progfed.recipe.recipe import Local, Recipe
from progfed.schedule import Phase
from progfed.server.loop import federate


def mlp() -> Progressive:
    """The small MLP of W0."""
    return Progressive(
        blocks=(lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU()),),
        heads=(lambda: nn.Linear(64, 10),),
        example=torch.zeros(1, 64),
        name="mlp",
    )


MODELS: dict[str, Callable[[], Progressive]] = {
    "W0": mlp,
    "W1": convnet_mnist,
    "W2": convnet_cifar,
    "W3": resnet18,
}


def population(load: Workload) -> FederatedData:
    """The clients of a workload."""
    made = clients(load)
    return from_clients(made, test=made[0], classes=load.classes, name=load.name)


def recipe(load: Workload, stage: int, *, rounds: int = 100_000) -> Recipe:
    """FedAvg with the settings of a workload, on the model of one stage."""
    local = Local(epochs=load.epochs, batch=load.batch, momentum=load.momentum, weight_decay=load.decay)
    return Recipe(schedule=(Phase(stage, rounds),), cohort=load.clients, rate=Constant(load.lr), local=local)


class Meter:
    """Counts optimizer steps, and the processor time of forward, backward and step, over all worker processes."""

    def __init__(self, workers: int) -> None:
        self._room = mmap.mmap(-1, 16 * 64)
        learn = ClientVisit.learn

        def timed(visit: ClientVisit, batch: Examples, **options: Any) -> Tensor:
            began = time.thread_time()
            loss = learn(visit, batch, **options)
            self._add(time.thread_time() - began)
            return loss

        ClientVisit.learn = timed  # type: ignore[method-assign]

    def _add(self, seconds: float) -> None:
        place = 16 * (torch.multiprocessing.current_process()._identity or (0,))[-1]
        steps, total = struct.unpack_from("<qd", self._room, place)
        struct.pack_into("<qd", self._room, place, steps + 1, total + seconds)

    def take(self) -> tuple[int, float]:
        """Steps and seconds since the last time."""
        rows = [struct.unpack_from("<qd", self._room, 16 * place) for place in range(64)]
        self._room[:] = bytes(len(self._room))
        return sum(steps for steps, _ in rows), sum(seconds for _, seconds in rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--stage", type=int)
    chosen = parser.parse_args()
    load, model = WORKLOADS[chosen.workload], MODELS[chosen.workload]()
    stage = chosen.stage or model.stages
    torch.set_num_threads(1)
    data, plan, meter = population(load), recipe(load, stage), Meter(chosen.workers)
    if stage == model.stages:
        assert phase_cost(model, Phase(stage, 1)).parameters == load.parameters
    flops = phase_cost(model, Phase(stage, 1)).flops
    with LocalEngine(model, data, plan, workers=chosen.workers) as engine:
        rounds = federate(model, data.sizes, plan, engine)

        def one() -> dict[str, object]:
            meter.take()
            began = time.perf_counter()
            done = next(rounds)
            seconds = time.perf_counter() - began
            steps, inside = meter.take()
            assert done.clients == load.clients
            return {
                "seconds": seconds,
                "examples": done.cost.flops // flops,
                "steps": steps,
                "outside": 1 - inside / (seconds * chosen.workers),
                "gflop": done.cost.flops / 1e9,
            }

        converse(one, f"progfed, stage {stage}, {chosen.workers} workers of {torch.get_num_threads()} thread")


if __name__ == "__main__":
    main()
