"""The kernel floor: the operators of a model's forward and backward pass alone, on staged batches, on both cores.

One training step of the plain model, last in channels, is recorded operator by operator; then the same operators
are called on the same tensors again and again, in one process per core: no autograd, no module, no optimizer, no data.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from typing import Any

import torch
from conversation import converse
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from workloads import WORKLOADS, Workload, clients, net

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


class Record(TorchDispatchMode):
    """Remembers every operator that is called inside."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def step_of(load: Workload) -> list[Call]:
    """The operators of one training step on one full batch."""
    model = net(load).train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    inputs, targets = clients(load)[0]
    inputs, targets = inputs[: load.batch], targets[: load.batch]
    if inputs.dim() == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    record = Record()
    with record:
        loss = functional.cross_entropy(model(inputs), targets)
        torch.autograd.grad(loss, list(model.parameters()))
    return record.calls


def replay(calls: list[Call], steps: int) -> None:
    """The same operators again."""
    with torch.inference_mode():
        for _ in range(steps):
            for func, args, kwargs in calls:
                func(*args, **kwargs)


def _worker(name: str, pipe: Any) -> None:
    torch.set_num_threads(1)
    calls = step_of(WORKLOADS[name])
    replay(calls, 2)
    pipe.send("ready")
    while (steps := pipe.recv()) is not None:
        began = time.perf_counter()
        replay(calls, steps)
        pipe.send(time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--share", type=float, default=0.25, help="the part of a round's steps that is really run")
    chosen = parser.parse_args()
    load = WORKLOADS[chosen.workload]
    fork = multiprocessing.get_context("fork")
    pipes = []
    for _ in range(chosen.cores):
        ours, theirs = fork.Pipe()
        fork.Process(target=_worker, args=(load.name, theirs), daemon=True).start()
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()
    full = load.seen / load.batch / chosen.cores  # a batch that is not full costs less: count examples
    steps = max(4, round(chosen.share * full))

    def one() -> dict[str, Any]:
        for pipe in pipes:
            pipe.send(steps)
        seconds = sum(pipe.recv() for pipe in pipes) / len(pipes)
        return {"seconds": seconds * full / steps, "measured": seconds}

    converse(one, f"operators of forward and backward, {chosen.cores} processes of 1 thread")


if __name__ == "__main__":
    main()
