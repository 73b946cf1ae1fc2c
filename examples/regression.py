"""Regression: a squared error as the loss, RMSE as the metric, of which lower is better."""

import argparse
import tempfile

import torch
from safetensors.torch import load_file
from torch import nn

import progfed
from progfed.metrics import mae, rmse


def main(rounds: int) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(900, 8)
    targets = (inputs[:, :4] * inputs[:, 4:]).sum(1, keepdim=True)
    data = progfed.from_clients(
        [(inputs[i : i + 40], targets[i : i + 40]) for i in range(0, 800, 40)], test=(inputs[800:], targets[800:])
    )
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    local = progfed.Local(loss=nn.functional.mse_loss, epochs=2, batch=10)
    schedule, rate = progfed.progressive(rounds, stages=2), progfed.Constant(0.02)
    experiment = progfed.Experiment(
        name="regression",
        model=progfed.split(net, stages=2, example=inputs),
        data=data,
        recipe=progfed.Recipe(schedule=schedule, cohort=5, rate=rate, local=local),
        metrics={
            "rmse": progfed.Metric(rmse, higher_is_better=False),
            "mae": progfed.Metric(mae, higher_is_better=False),
        },
    )
    with tempfile.TemporaryDirectory() as out:
        found = progfed.run(experiment, out)["metrics"]
        net.load_state_dict(load_file(f"{out}/exported.safetensors"))
    again = rmse(net(inputs[800:]), targets[800:])
    print(f"rmse {found['rmse']:.3f}, mae {found['mae']:.3f}; rmse in plain PyTorch {again:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    main(parser.parse_args().rounds)
