"""Your own network and one dataset per client, in about ten lines: progressive training next to end-to-end.

Run it with `python examples/quickstart.py`; it makes its own data and takes a few seconds.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from torch import nn

import progfed


def clients(number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Stands for your data: one pair of inputs and labels each; here points whose label is their nearest centre."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 32, generator=draw)
    points = [torch.randn(60, 32, generator=draw) for _ in range(number)]
    return [(some, torch.cdist(some, centres).argmin(1)) for some in points]


def main(rounds: int) -> None:
    torch.manual_seed(0)  # training starts from the weights that the network has when it is split
    net = nn.Sequential(
        nn.Linear(32, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
    everybody = clients(21)
    model = progfed.split(net, stages=3, example=everybody[0][0])
    data = progfed.from_clients(everybody[:-1], test=everybody[-1], classes=10)
    schedules = {
        "end-to-end": progfed.end_to_end(rounds, stages=3),
        "progressive": progfed.progressive(rounds, stages=3),
    }
    for name, schedule in schedules.items():
        recipe = progfed.Recipe(schedule=schedule, cohort=5, rate=progfed.Constant(0.1))
        experiment = progfed.Experiment(name="quickstart", run=name, model=model, data=data, recipe=recipe)
        with tempfile.TemporaryDirectory() as folder:
            summary = progfed.run(experiment, folder)
        sent = summary["cost"]["down_bytes"] + summary["cost"]["up_bytes"]
        print(f"{name:<12} accuracy {summary['metric']:5.1f} %   {sent / 1e6:6.1f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    main(parser.parse_args().rounds)
