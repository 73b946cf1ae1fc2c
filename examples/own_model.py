"""An ordinary residual network, trained progressively without editing it, and its weights back where they came from.

Run it with `python examples/own_model.py`; it takes less than a minute on the images that come with progfed.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import progfed
from progfed.data.embedded import embedded


class Residual(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1)
        self.norm = nn.GroupNorm(4, width)
        self.shortcut = nn.Conv2d(inputs, width, 1, stride)

    def forward(self, features: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv2(torch.relu(self.conv1(features)))) + self.shortcut(features))


class Net(nn.Module):
    """Nothing in here knows that it will grow."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, 2, 1)
        self.layers = nn.ModuleList([Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2)])
        self.classify = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        features = self.stem(images)
        for layer in self.layers:
            features = layer(features)
        return self.classify(features.mean((2, 3)))


def main(rounds: int, clients: int = 20) -> None:
    torch.manual_seed(0)  # training starts from the weights that the network has when it is split
    net, data = Net(), embedded(clients=clients)
    model = progfed.split(net, stages=3, example=torch.zeros(1, 1, 28, 28))
    for stage in (1, 2, 3):
        count = sum(parameter.numel() for parameter in model.at(stage).parameters())
        print(f"M^{stage}: {count:,} parameters")
    recipe = progfed.Recipe(
        schedule=progfed.progressive(rounds, stages=3),
        cohort=5,
        rate=progfed.Constant(0.05),
        local=progfed.Local(epochs=1, batch=20, momentum=0.9),
    )
    experiment = progfed.Experiment(name="own model", model=model, data=data, recipe=recipe, evaluate_every=rounds)
    with tempfile.TemporaryDirectory() as folder:
        summary = progfed.run(experiment, folder, workers=2)
        trained = load_file(Path(folder) / "model.safetensors")
    net.load_state_dict(model.export(trained))  # strict: every name of the original, and no other
    test = data.test_examples()
    with torch.inference_mode():
        found = (net.eval()(test.inputs).argmax(1) == test.targets).float().mean()
    print(f"trained progressively: {summary['metric']:.1f} %")
    print(f"the original network with those weights: {100 * found:.1f} %")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=18)
    main(parser.parse_args().rounds)
