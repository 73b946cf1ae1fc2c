"""A folder with one file per client, read only when its client is drawn; a deployment reads it on the client's machine.

Run it with `python examples/own_data.py`; it writes such a folder first and takes a few seconds. With
`--folder DIR` the files are left there to look at.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import progfed
from progfed.data.own import OwnData

CLIENTS = 12


def write(folder: Path) -> None:
    """Sensor readings of twelve machines and of a test bench: 48 numbers each, three conditions to tell apart."""
    draw = np.random.default_rng(0)
    shapes = np.sin(np.outer([1, 2, 3], np.linspace(0, 6, 48)))
    for name in ("test", *(f"machine-{client:02}" for client in range(CLIENTS))):
        labels = draw.integers(0, 3, 60)
        np.savez(folder / f"{name}.npz", readings=shapes[labels] + draw.normal(0, 1.5, (60, 48)), condition=labels)


def read(path: Path) -> progfed.Examples:
    """The examples of one file: inputs and targets, the first dimension of both is the example."""
    with np.load(path) as held:
        return progfed.Examples(torch.from_numpy(held["readings"]).float(), torch.from_numpy(held["condition"]))


DATA = OwnData(
    clients=CLIENTS,
    load=lambda folder, client: read(folder / f"machine-{client:02}.npz"),
    test=lambda folder: read(folder / "test.npz"),
    classes=3,
    name="machines",
)


def main(rounds: int, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write(folder)
    torch.manual_seed(0)  # training starts from the weights that the network has when it is split
    net = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    experiment = progfed.Experiment(
        name="own data",
        model=progfed.split(net, stages=2, example=torch.zeros(1, 48)),
        data=DATA,
        recipe=progfed.Recipe(schedule=progfed.progressive(rounds, stages=2), cohort=4, rate=progfed.Constant(0.05)),
    )
    with tempfile.TemporaryDirectory() as out:
        summary = progfed.run(experiment, out, data=folder)
    print(f"{len(list(folder.glob('machine-*.npz')))} machines, accuracy on the test bench {summary['metric']:.1f} %")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        main(given.rounds, given.folder or Path(temporary))
