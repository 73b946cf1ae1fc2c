"""Plain PyTorch as most write it: a copy of the model for each client, a DataLoader, `optim.SGD`, a mean of states.

It runs on torch's default number of threads, one client after the other.
"""

from __future__ import annotations

import copy
import sys
import time
from typing import Any

import torch
from conversation import converse
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from workloads import WORKLOADS, clients, net


def main() -> None:
    load = WORKLOADS[sys.argv[1]]
    model, data = net(load), clients(load)
    counted = {"examples": 0, "steps": 0}

    def client(start: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        local = copy.deepcopy(start).train()
        optimizer = torch.optim.SGD(local.parameters(), lr=load.lr, momentum=load.momentum, weight_decay=load.decay)
        loader = DataLoader(TensorDataset(inputs, targets), batch_size=load.batch, shuffle=True)
        for _ in range(load.epochs):
            for images, labels in loader:
                optimizer.zero_grad()
                functional.cross_entropy(local(images), labels).backward()
                optimizer.step()
                counted["examples"] += len(labels)
                counted["steps"] += 1
        return local.state_dict()

    def one() -> dict[str, Any]:
        counted.update(examples=0, steps=0)
        began = time.perf_counter()
        states = [client(model, inputs, targets) for inputs, targets in data]
        mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
        model.load_state_dict(mean)
        return {"seconds": time.perf_counter() - began, **counted}

    converse(one, f"plain PyTorch {torch.__version__}, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
