"""Apple's pfl in its own way: its FedAvg algorithm on its simulated backend, driven by a callback between rounds."""

from __future__ import annotations

import logging
import sys
import time
from functools import partial
from typing import Any

import pfl
import torch
from conversation import answer
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import HyperParam, NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional
from workloads import WORKLOADS, clients, net

LOAD = WORKLOADS[sys.argv[1]]


class Net(nn.Module):
    """The model with the two methods that pfl asks for; it counts what it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net(LOAD)
        self.examples = self.steps = 0

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.net(inputs)
        return result

    def loss(self, inputs: Tensor, targets: Tensor, eval: bool = False) -> Tensor:
        self.train()
        self.examples += len(targets)
        self.steps += 1
        return functional.cross_entropy(self(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, targets: Tensor, eval: bool = False) -> dict[str, Any]:
        self.eval()
        return {"loss": Weighted(functional.cross_entropy(self(inputs), targets).item(), 1)}


class Cohort(HyperParam):  # type: ignore[type-arg]
    """How many clients a round has: few in the first, which is for warming up."""

    number = 2

    def value(self) -> int:
        return self.number


COHORT = Cohort()


class Turns(TrainingProcessCallback):
    """Answers after each round, and waits to be asked for the next; the first round is for warming up."""

    def __init__(self, module: Net) -> None:
        self._module, self._began = module, 0.0
        self._variant = f"pfl {pfl.__version__}, {torch.get_num_threads()} threads"

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        seconds = time.perf_counter() - self._began
        counted = {"examples": self._module.examples, "steps": self._module.steps}
        if central_iteration:
            answer({"variant": self._variant, "seconds": seconds, **counted})
        else:
            answer({"ready": self._variant})
        stop = not sys.stdin.readline()
        COHORT.number = LOAD.clients
        self._module.examples = self._module.steps = 0
        self._began = time.perf_counter()
        return stop, Metrics()


def main() -> None:
    logging.disable(logging.WARNING)
    data, module = clients(LOAD), Net()
    users = FederatedDataset(
        lambda user: Dataset(raw_data=list(data[user])), get_user_sampler("minimize_reuse", list(range(LOAD.clients)))
    )
    create = partial(torch.optim.SGD, momentum=LOAD.momentum, weight_decay=LOAD.decay)
    model = PyTorchModel(module, create, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=10_000,
            evaluation_frequency=10_000,
            train_cohort_size=COHORT,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=users, val_data=users),
        model,
        NNTrainHyperParams(local_learning_rate=LOAD.lr, local_num_epochs=LOAD.epochs, local_batch_size=LOAD.batch),
        NNEvalHyperParams(local_batch_size=LOAD.batch),
        [Turns(module)],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
