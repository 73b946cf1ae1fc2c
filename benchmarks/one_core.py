"""Processor time on one core: the comparison that other programs on the machine disturb least.

A few clients of a workload are trained in this process, on one thread: by progfed, by the plain loop, and by the
operators of forward and backward alone, in turns. Seconds are those of the processor, not of the clock.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import workloads
from floor import replay, step_of
from ours import MODELS, Meter, recipe
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from progfed.engines.local import LocalEngine
from progfed.examples import from_clients
from progfed.federate import federate

CLIENTS = {"W0": 100, "W1": 4, "W2": 1}


def compare(turns: int = 3) -> dict[str, Any]:
    """Ratios to progfed's processor time, for the workloads that fit."""
    torch.set_num_threads(1)
    meter = Meter(1)
    return {name: _workload(replace(workloads.WORKLOADS[name], clients=n), meter, turns) for name, n in CLIENTS.items()}


def _workload(load: workloads.Workload, meter: Meter, turns: int) -> dict[str, Any]:
    model, made, calls = MODELS[load.name](), workloads.clients(load), step_of(load)
    data, plan = from_clients(made, test=made[0], classes=load.classes), recipe(load, MODELS[load.name]().stages)
    few = max(4, round(load.seen / load.batch / 2))
    rows = []
    with LocalEngine(model, data, plan) as engine:
        rounds = federate(model, data.sizes, plan, engine)
        next(rounds)
        for _ in range(turns):
            meter.take()
            ours = _seconds(lambda: next(rounds))
            steps, inside = meter.take()
            assert steps == load.steps
            floor = _seconds(lambda: replay(calls, few)) * load.seen / load.batch / few
            rows.append((ours, 1 - inside / ours, floor / ours, _seconds(lambda: _plain(load, made)) / ours))
    names = ("seconds", "outside", "of_floor", "plain")
    return {name: statistics.median(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}


def _plain(load: workloads.Workload, made: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    base = workloads.net(load)
    for inputs, targets in made:
        local = copy.deepcopy(base).train()
        optimizer = torch.optim.SGD(local.parameters(), lr=load.lr, momentum=load.momentum, weight_decay=load.decay)
        loader = DataLoader(TensorDataset(inputs, targets), batch_size=load.batch, shuffle=True)
        for _ in range(load.epochs):
            for images, labels in loader:
                optimizer.zero_grad()
                functional.cross_entropy(local(images), labels).backward()
                optimizer.step()


def _seconds(function: Callable[[], object]) -> float:
    began = time.process_time()
    function()
    return time.process_time() - began
