"""Regression: a squared error as the loss, RMSE as the metric, of which lower is better."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

import progfed
from progfed.metrics import mae, rmse


def main(folder: Path, rounds: int = 40) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(900, 8)
    targets = (inputs[:, :4] * inputs[:, 4:]).sum(1, keepdim=True)
    clients = [(inputs[i : i + 40], targets[i : i + 40]) for i in range(0, 800, 40)]
    data = progfed.from_clients(clients, test=(inputs[800:], targets[800:]))
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    model = progfed.split(net, stages=2, example=inputs)
    local, rate = progfed.Local(loss=nn.functional.mse_loss, epochs=2, batch=10), progfed.Constant(0.02)
    recipe = progfed.Recipe(schedule=progfed.progressive(rounds, stages=2), cohort=5, rate=rate, local=local)
    metrics = {
        "rmse": progfed.Metric(rmse, higher_is_better=False),
        "mae": progfed.Metric(mae, higher_is_better=False),
    }
    experiment = progfed.Experiment(name="regression", model=model, data=data, recipe=recipe, metrics=metrics)
    found = progfed.run(experiment, folder / "run")["metrics"]
    print(f"reported:         rmse {found['rmse']:.3f}, mae {found['mae']:.3f}")
    net.load_state_dict(load_file(folder / "run" / "exported.safetensors"))
    print(f"in plain PyTorch: rmse {nn.functional.mse_loss(net(inputs[800:]), targets[800:]).sqrt():.3f}")


if __name__ == "__main__":
    main(Path("regression"))
