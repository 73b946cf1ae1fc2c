"""Several labels an example: binary cross-entropy as the loss, AUC and F1 over labels as metrics."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

import progfed
from progfed.metrics import auc, f1


def main(folder: Path, rounds: int = 40) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(900, 12)
    targets = (inputs @ torch.randn(12, 5) + torch.randn(900, 5) > 1).float()  # each label is rather rare
    clients = [(inputs[i : i + 40], targets[i : i + 40]) for i in range(0, 800, 40)]
    data = progfed.from_clients(clients, test=(inputs[800:], targets[800:]))
    net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5))
    model = progfed.split(net, stages=2, example=inputs)
    local = progfed.Local(loss=nn.functional.binary_cross_entropy_with_logits, epochs=2, batch=10)
    rate = progfed.Constant(0.2)
    recipe = progfed.Recipe(schedule=progfed.progressive(rounds, stages=2), cohort=5, rate=rate, local=local)
    metrics = {"AUC": progfed.Metric(auc, unit="%"), "F1": progfed.Metric(f1, unit="%")}
    experiment = progfed.Experiment(name="multi-label", model=model, data=data, recipe=recipe, metrics=metrics)
    found = progfed.run(experiment, folder / "run")["metrics"]
    print(f"reported:         AUC {found['AUC']:.2f} %, F1 {found['F1']:.2f} %")
    net.load_state_dict(load_file(folder / "run" / "exported.safetensors"))
    outputs, areas = net(inputs[800:]), []
    for label in range(5):  # the share of pairs, one with the label and one without, that are in the right order
        with_, without = outputs[targets[800:, label] > 0, label], outputs[targets[800:, label] == 0, label]
        areas.append((with_[:, None] > without).float().mean())
    print(f"in plain PyTorch: AUC {100 * torch.stack(areas).mean():.2f} %")


if __name__ == "__main__":
    main(Path("multi-label"))
