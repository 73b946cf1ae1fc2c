"""A regression in milliseconds: the target is a linear function of the input; lower is better."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from progfed import Constant, Experiment, Local, Metric, Progressive, Recipe, end_to_end, from_clients, progressive
from progfed.metrics import mae, rmse

ERRORS = {"rmse": Metric(rmse, higher_is_better=False), "mae": Metric(mae, higher_is_better=False)}


def line_experiment(*, grows: bool = True, rounds: int = 8, **changes: Any) -> Experiment:
    """Two linear blocks that learn a line by the squared error, growing or whole."""
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(80, 4, generator=draw)
    targets = inputs @ torch.tensor([[1.0], [2.0], [0.0], [-1.0]])
    clients = [(inputs[start : start + 10], targets[start : start + 10]) for start in range(0, 60, 10)]
    model = Progressive(
        blocks=(lambda: nn.Linear(4, 8), lambda: nn.Sequential(nn.ReLU(), nn.Linear(8, 8))),
        heads=(lambda: nn.Linear(8, 1), lambda: nn.Linear(8, 1)),
        example=torch.zeros(1, 4),
        name="line",
    )
    schedule = progressive(rounds, stages=2, overlap=0) if grows else end_to_end(rounds, stages=2)
    local = Local(loss=nn.functional.mse_loss, batch=5)
    settings: dict[str, Any] = {
        "name": "line",
        "run": "growing" if grows else "whole",
        "baseline": "whole" if grows else "",
        "model": model,
        "data": from_clients(clients, test=(inputs[60:], targets[60:])),
        "recipe": Recipe(schedule=schedule, cohort=3, rate=Constant(0.05), local=local),
        "metrics": ERRORS,
    }
    return Experiment(**{**settings, **changes})
