"""Several labels an example: binary cross-entropy as the loss, AUC and F1 over labels as metrics."""

import argparse
import tempfile

import torch
from safetensors.torch import load_file
from torch import nn

import progfed
from progfed.metrics import auc, f1


def main(rounds: int) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(900, 12)
    targets = (inputs @ torch.randn(12, 5) + torch.randn(900, 5) > 1).float()  # each label is rather rare
    data = progfed.from_clients(
        [(inputs[i : i + 40], targets[i : i + 40]) for i in range(0, 800, 40)], test=(inputs[800:], targets[800:])
    )
    net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5))
    local = progfed.Local(loss=nn.functional.binary_cross_entropy_with_logits, epochs=2, batch=10)
    schedule, rate = progfed.progressive(rounds, stages=2), progfed.Constant(0.2)
    experiment = progfed.Experiment(
        name="multi-label",
        model=progfed.split(net, stages=2, example=inputs),
        data=data,
        recipe=progfed.Recipe(schedule=schedule, cohort=5, rate=rate, local=local),
        metrics={"AUC": progfed.Metric(auc, unit="%"), "F1": progfed.Metric(f1, unit="%")},
    )
    with tempfile.TemporaryDirectory() as out:
        found = progfed.run(experiment, out)["metrics"]
        net.load_state_dict(load_file(f"{out}/exported.safetensors"))
    again = 100 * auc(net(inputs[800:]), targets[800:])
    print(f"AUC {found['AUC']:.2f} %, F1 {found['F1']:.2f} %; AUC in plain PyTorch {again:.2f} %")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    main(parser.parse_args().rounds)
