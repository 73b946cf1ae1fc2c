"""A module in the style of Lightning: the network inside it is trained, with the module's loss and optimizer."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import progfed


class Classifier(nn.Module):  # of Lightning, it would be a LightningModule; nothing else changes
    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.Linear(width, 32), nn.ReLU()) for width in (16, 32, 32)]
        self.net, self.loss = nn.Sequential(*layers, nn.Linear(32, 4)), nn.CrossEntropyLoss(label_smoothing=0.05)

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        return self.loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2, weight_decay=0.01)


def main(folder: Path, rounds: int = 30) -> None:
    torch.manual_seed(0)
    module, inputs = Classifier(), torch.randn(1000, 16)
    labels = inputs.reshape(1000, 4, 4).sum(2).argmax(1)
    model = progfed.split(module.net, stages=3, example=inputs)
    clients = [(inputs[i : i + 40], labels[i : i + 40]) for i in range(0, 800, 40)]
    data = progfed.from_clients(clients, test=(inputs[800:], labels[800:]), classes=4)
    settings = module.configure_optimizers()  # the class and its settings; the rate belongs to the recipe
    optimizer = partial(type(settings), weight_decay=settings.defaults["weight_decay"])
    local = progfed.Local(loss=module.loss, optimizer=optimizer, epochs=2, batch=10)
    recipe = progfed.Recipe(schedule=progfed.progressive(rounds, stages=3), cohort=5, local=local, rate=1e-2)
    experiment = progfed.Experiment(name="lightning", model=model, data=data, recipe=recipe)
    print(f"reported:         {progfed.run(experiment, folder / 'run')['metric']:.1f} %")
    progfed.export(folder / "run", folder / "net.pt")
    module.net.load_state_dict(torch.load(folder / "net.pt"))
    print(f"in plain PyTorch: {100 * (module.net(inputs[800:]).argmax(1) == labels[800:]).float().mean():.1f} %")


if __name__ == "__main__":
    main(Path("lightning"))
